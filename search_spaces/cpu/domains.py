"""Domains of the parameters of CPU sketches: tiles, unroll factors, vectors, rows of a block, blocks of K."""

from __future__ import annotations

from autosched.ir.expr import Const, Expr
from autosched.ir.expr import Param as Number
from autosched.ir.linear import ONE
from autosched.ir.visit import subexpressions, substitute
from autosched.target import PIECE_BYTES
from search_spaces.space import SketchParam

MAX_REGISTER_TILE = 16
MAX_WHOLE = 16  # iterations of a reduction loop that may be unrolled completely
MAX_DOTS = 8  # points of an axis that each have a vector of partial sums
FEW_ROWS, MAX_ROWS, MOST_ROWS = 8, 32, 1024  # rows of a block: too few below, preferred up to, and the most
ROW_BLOCK = ".rows"  # suffix of the parameters for the rows of a block
_COUNTS = (
    *range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256, 384, 512, 1024,
)  # fmt: skip
_VECTORS = (1, 2, 3, 4, 5, 6)


def register_tile(name: str, extent: int, group: str) -> SketchParam:
    """Points of an axis that are unrolled in the register tile: any number, it need not divide the extent."""
    return SketchParam(name, tuple(range(1, min(extent, MAX_REGISTER_TILE) + 1)), "tile", group, extent)


def points_of_dots(name: str, extent: int, group: str = "") -> SketchParam:
    """Points of an axis that each have a vector of partial sums: any number on a short axis, else a power of two."""
    values = range(1, extent + 1) if extent <= MAX_DOTS else (1, 2, 4, MAX_DOTS)
    return SketchParam(name, tuple(values), "tile", group, extent)


def across_tile(name: str, extent: int, more: bool = False, itemsize: int = 4) -> SketchParam:
    """Points along the source's contiguous axis in a transposed tile: up to 128 bits, the width of the shuffles.

    `more`: each point is several adjacent elements.
    """
    block = max(1, PIECE_BYTES // itemsize)
    counts = (1, 2, 4) if more else sorted({block, 2 * block} | {n for n in (4, 8, 12, 16) if n % block == 0})
    return SketchParam(name, tuple(n for n in counts if n <= extent) or (extent,), "tile", "", extent)


def tile_count(name: str, extent: int, group: str) -> SketchParam:
    """Inner tiles in a middle tile."""
    values = {c for c in _COUNTS if c <= extent} | {extent} if extent <= 1024 else {c for c in _COUNTS if c <= extent}
    return SketchParam(name, tuple(sorted(values)), "tile", group, extent, counts=True)


def run_of_tiles(name: str, extent: int, group: str) -> SketchParam:
    """Consecutive tiles along an axis that is not the innermost one: one, or a few to many."""
    return SketchParam(
        name, tuple(n for n in (1, 4, 16, 64, 256, 1024) if n <= extent), "tile", group, extent, counts=True
    )


def rows_together(extent: int) -> tuple[int, ...]:
    """Return the candidate numbers of rows in a block: the powers of two up to 32 that divide `extent`.

    If these end below 8: the divisors of the largest divisor of `extent` up to 32. If that is below 8 too, those of the
    smallest divisor above 32. Passes over a row are interleaved with those over the next one (unroll-and-jam), so only
    a few of many rows are in use at a time.
    """
    powers = tuple(r for r in (1, 2, 4, 8, 16, MAX_ROWS) if extent % r == 0)
    if powers[-1] >= FEW_ROWS:
        return powers
    divisors = [r for r in range(1, MOST_ROWS + 1) if extent % r == 0]
    most = max(r for r in divisors if r <= MAX_ROWS)
    if most < FEW_ROWS:
        most = next((r for r in divisors if r > MAX_ROWS), most)
    return tuple(r for r in divisors if most % r == 0)


def row_levels(name: str, extent: int) -> tuple[list[SketchParam], tuple[str | int, ...]]:
    """Return the parameters of an axis of rows, and the factors of its split: blocks in a task, and rows in a block.

    The rows of a block go through the stages together, which hides the latency at the end of one row's reduction behind
    the next row. All numbers are divisors, so a stage that is computed for a row never exceeds the axis. With all
    rows in one task, no other thread is woken.
    """
    together = rows_together(extent)
    blocks_of_all = extent // together[-1]
    counts = {r for r in (1, 2, 3, 4, 5, 7, 8, 16, 32) if blocks_of_all % r == 0} | {blocks_of_all}
    blocks = SketchParam(f"{name}.m", tuple(sorted(counts)), "tile")
    rows = SketchParam(f"{name}{ROW_BLOCK}", together, "tile")
    n_blocks, n_rows = len(blocks.domain) > 1, len(rows.domain) > 1
    factors = (blocks.name if n_blocks else 1, *([rows.name] if n_rows else []))
    return [*([blocks] if n_blocks else []), *([rows] if n_rows else [])], factors


def single_row_extent(extent: Expr) -> Expr:
    """Return the extent of a region, or of a loop, for a block of one row."""
    sizes = (e for e in subexpressions(extent) if isinstance(e, Number) and e.name.endswith(ROW_BLOCK))
    return substitute(extent, dict.fromkeys(sizes, ONE))


def is_row_block(extent: Expr) -> bool:
    """Whether the extent is one row, or the number of rows of a block."""
    return single_row_extent(extent) is ONE


def vector_width(name: str, extent: int, lanes: int, group: str, vectors: tuple[int, ...] = _VECTORS) -> SketchParam:
    """Elements of an axis in vectors: whole vectors, no more than cover the axis."""
    most = -(-extent // lanes)
    values = tuple(sorted({lanes * v for v in vectors if v <= most})) or (lanes,)
    return SketchParam(name, values, "vector", group, max(extent, lanes))


def unroll(name: str, extent: Expr) -> SketchParam:
    """Unroll factor of a reduction loop; a short loop may be unrolled completely."""
    length = int(extent.value) if isinstance(extent, Const) else 1 << 30  # the length of a block of K is a parameter
    values = {u for u in (1, 2, 4, 8) if u <= length}
    if length <= MAX_WHOLE:
        values.add(length)
    return SketchParam(name, tuple(sorted(values)), "unroll")


def reduction_block(name: str, extent: int) -> SketchParam:
    """Iterations of a reduction in a packed panel: panels of a few KiB up to a large share of the L2."""
    return SketchParam(name, tuple(b for b in (96, 128, 192, 256, 320, 384, 512, 768, 1024) if b <= extent), "tile")


def short_block(name: str, extent: int) -> SketchParam:
    """Rows of a long operand that stream in together: as many streams, on as many pages."""
    return SketchParam(name, tuple(b for b in (4, 8, 16, 24, 32, 64) if b <= extent), "tile")


def panel_block(name: str, extent: int) -> SketchParam:
    """As `short_block`, for rows that are copied into a panel and prefetched: more rows cost no more pages."""
    return SketchParam(name, tuple(b for b in (16, 24, 32, 48, 64, 96, 128, 192, 256) if b <= extent), "tile")


def few_streams(name: str, extent: int) -> SketchParam:
    """As `short_block`, for rows from memory: as many streams as the hardware prefetcher follows.

    A sum of 48 MB took 1.9 times as long with 64 rows at a time as with 4 to 16.
    """
    return SketchParam(name, tuple(b for b in (4, 8, 16) if b <= extent), "tile")


def blocks(name: str, extent: int, threads: int) -> SketchParam:
    """Block lengths that cut an axis in a few blocks for each thread."""
    pieces = [threads * n for n in (1, 2, 3, 4, 8, 16)]
    return SketchParam(name, tuple(sorted({-(-extent // p) for p in pieces if p <= extent} | {extent})), "tile")
