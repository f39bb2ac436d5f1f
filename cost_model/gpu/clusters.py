"""Legality and traffic of clusters of blocks that load tiles for each other, in closed form (`c/tiles/clusters.py`)."""

from __future__ import annotations

from autosched.ir.closed_forms.arithmetic import ZERO, where
from autosched.ir.expr import INDEX, Const, Expr, Var, binary
from autosched.ir.instructions.tiles import MOST_CLUSTER, WARPGROUP, has_half_panels, has_half_rows
from autosched.ir.linear import linear
from autosched.ir.stmt import BLOCKS, Sharing
from autosched.ir.visit import free_vars
from cost_model.analysis.access import Access
from cost_model.gpu.constants import CardConstants
from cost_model.gpu.fills import FALSE, OUTSIDE
from cost_model.gpu.kernels import KernelWork, Work

NONE: Expr = Const(0, INDEX)


def loaded_together(kernel: KernelWork, work: Work) -> Expr:
    """Whether blocks of a cluster load a half of the tile each, bool."""
    if kernel.sharing is None or not (work.is_tile and work.is_fill):
        return FALSE
    [outside] = work.accesses(*OUTSIDE)
    loops = enumerate(work.statement.loops)
    moving = {x.kind for i, x in loops if x.kind in BLOCKS and outside.moves(i)}
    sides = ((BLOCKS[1], kernel.sharing.down), (BLOCKS[0], kernel.sharing.across))
    read_by_both = FALSE
    for kind, count in sides:
        read_by_both = read_by_both if kind in moving else read_by_both | (count > 1)
    shape = work.tile.shape[int(work.tile.has_versions) :]
    rows = FALSE if _is_gathered(work, outside) else has_half_rows(shape, work.tile.itemsize)
    return read_by_both & (has_half_panels(shape, work.tile.itemsize) | rows)


def _is_gathered(work: Work, outside: Access) -> bool:
    """Whether the tile's rows are pixels of an image: they move the address by digits of their number."""
    own = {x.var for x in work.own}
    atoms = (atom for index in outside.index for atom, _ in linear(index).terms)
    return any(not isinstance(atom, Var) and free_vars(atom) & own for atom in atoms)


def waiting_for_cluster(kernel: KernelWork, constants: CardConstants) -> Expr:
    """Cycles that a block of a cluster waits for the other block, real."""
    return ZERO if kernel.sharing is None else where(kernel.cluster > 1, constants.cluster_latency, 0.0)


def cluster_rules(kernel: KernelWork, sharing: Sharing) -> dict[str, Expr]:
    """What clusters must satisfy, by name: they divide the grid, and have something to share; and
    turns: a block has one warpgroup for each."""
    size, one = kernel.cluster, Const(1, INDEX)
    warpgroup = binary("eq", kernel.threads, Const(WARPGROUP, INDEX)) & binary("eq", kernel.resident, one)
    divided = binary("eq", kernel.grid[1] % sharing.down, NONE) & binary("eq", kernel.grid[0] % sharing.across, NONE)
    together = FALSE
    for work in kernel.works:
        together = together | loaded_together(kernel, work)
    return {
        "blocks of a cluster": size <= MOST_CLUSTER,
        "clusters in the grid": divided,
        "tiles of a cluster": binary("eq", size, one) | together,
        "warpgroups in turn": binary("eq", sharing.turns, one) | warpgroup,
    }
