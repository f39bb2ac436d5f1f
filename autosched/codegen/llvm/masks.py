"""Lane masks as text: literals with known lanes, until they are combined with another mask."""

from __future__ import annotations

from collections.abc import Iterable

from autosched.codegen.llvm.vocabulary import splat
from autosched.codegen.llvm.writer import Writer
from autosched.ir.expr import Expr
from autosched.ir.stmt import Allocate, For, ForKind, Store, walk
from autosched.ir.visit import exprs_of, loads
from autosched.target import Target


def lanes_of(mask: str | None, lanes: int) -> list[int]:
    """Return the active lanes of a mask; () if they are unknown."""
    if mask is None:
        return list(range(lanes))
    return [n for n, bit in enumerate(mask[1:-1].split(", ")) if bit == "i1 true"] if mask.startswith("<") else []


def run(mask: str | None, lanes: int) -> tuple[int, int]:
    """Return the first active lane and the count of a mask whose active lanes are known and adjacent; else (0, 0)."""
    enabled = lanes_of(mask, lanes)
    return (enabled[0], len(enabled)) if enabled and enabled[-1] - enabled[0] == len(enabled) - 1 else (0, 0)


def leading(mask: str | None) -> int:
    """Return the number of active lanes of a mask of exactly the first lanes; 0 for other or unknown masks."""
    lanes = [] if mask is None else lanes_of(mask, 0)
    return len(lanes) if lanes == list(range(len(lanes))) else 0


def has_stores(target: Target) -> bool:
    """Whether a store that leaves lanes out is an instruction as fast as others: on Zen 3 each VMASKMOVPS cost products
    of small matrices some twelve cycles, and what has none stores lane by lane."""
    return target.has("avx512vl")


def leaves_lanes_alone(stmt: Allocate) -> bool:
    """Whether nothing is done with the buffer but by vectorised loops over as many elements, all from the first of a
    row on. Lanes behind the last one are then nobody's, and need not keep their values where a vector is updated: a
    blend after each multiply-add, without masked arithmetic."""
    name, layout, inside = stmt.buffer.name, stmt.buffer.layout, list(walk(stmt.body))
    if not stmt.buffer.shape or (layout is not None and layout.tiles):
        return False
    extents: dict[Expr, Expr] = {s.var: s.extent for s in inside if isinstance(s, For) and s.kind is ForKind.VECTORIZE}
    used = [s.indices for s in inside if isinstance(s, Store) and name in s.buffers]
    used += [x.indices for s in inside for e in exprs_of(s) for x in loads(e) if x.buffer == name]
    places = {indices[-1 if layout is None else layout.order[-1]] for indices in used}
    return places <= extents.keys() and len({extents[place] for place in places}) == 1


def literal_mask(some: Iterable[int], lanes: int) -> str:
    chosen = set(some)
    bits = ("true" if n in chosen else "false" for n in range(lanes))
    return f"<{', '.join(f'i1 {bit}' for bit in bits)}>"


def both(writer: Writer, a: str, b: str, lanes: int) -> str:
    if a.startswith("<") and b.startswith("<"):
        return literal_mask(set(lanes_of(a, lanes)) & set(lanes_of(b, lanes)), lanes)
    return writer.value(f"and <{lanes} x i1> {a}, {b}")


def inverse(writer: Writer, mask: str, lanes: int) -> str:
    if mask.startswith("<"):
        return literal_mask(set(range(lanes)) - set(lanes_of(mask, lanes)), lanes)
    return writer.value(f"xor <{lanes} x i1> {mask}, {splat('true', 'bool', lanes)}")


def some(writer: Writer, mask: str, lanes: int) -> str:
    """Whether the mask has any lane."""
    if mask.startswith("<"):
        return "true" if lanes_of(mask, lanes) else "false"
    return writer.value(f"call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> {mask})")
