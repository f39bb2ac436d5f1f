"""Emission of tile products (`lower/register_tiles/tile_product.py`), with the sums in tile registers.

    tilezero            all sums; or they are loaded, where something was added up before
    for k .. reduce:    tileloadd   the words of one operand, then of each tile of the other one
                        tdpbusd     into the sums of both
    tilestored          all sums

The sizes of tiles are the processor's state. A function sets it before the first product and where another one has
other sizes (some 45 ns), and leaves none behind, so that nobody saves tiles for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from autosched.codegen.llvm.bindings import Runtime
from autosched.codegen.llvm.emitters import StatementEmitter
from autosched.codegen.llvm.writer import Writer
from autosched.ir.expr import INDEX, Const, Expr, Var, imin
from autosched.ir.instructions.dots import INTRINSICS
from autosched.ir.instructions.tile_products import CONFIG_BYTES, SIDE, parts
from autosched.ir.simplify import UNKNOWN
from autosched.ir.stmt import For
from autosched.ir.visit import substitute
from autosched.lower.register_tiles.context import number_of
from autosched.lower.register_tiles.tile_product import ProductNest, ProductPlan, TileOperand

_PALETTE = 1
_COLUMNS_AT, _ROWS_AT = 16, 48  # in the configuration: 16 bits for each tile, then 8
_CONFIG, _SIZES = "config of tiles", "sizes of tiles"  # of a function
Place = Mapping[Expr, Expr]  # of a tile: what stands for the variables of its loops


class TileSize(NamedTuple):
    """Rows of a tile, and words of a row: numbers, or registers with them."""

    rows: int | str
    words: int | str


def emit_product(emitter: StatementEmitter, plan: ProductPlan) -> None:
    """Emit a product in tile registers, and the prefetches before it."""
    code = _Code(emitter, plan)
    if plan.is_whole:
        code.whole()
    else:
        code.one_by_one()
    for fetch in plan.fetches or ():
        emitter.emit(fetch)


def declarations(texts: Sequence[str]) -> list[str]:
    """Return the declarations of the functions that `texts` call."""
    known = {
        "llvm.x86.ldtilecfg": "ptr", "llvm.x86.tilerelease": "", "llvm.x86.tilezero": "i8 immarg",
        "llvm.x86.tileloadd64": "i8 immarg, ptr, i64", "llvm.x86.tilestored64": "i8 immarg, ptr, i64",
        **{row.tile[0]: "i8 immarg, i8 immarg, i8 immarg" for row in INTRINSICS.values() if row.tile is not None},
    }  # fmt: skip
    return [f"declare void @{name}({of})" for name, of in known.items() if any(f"@{name}(" in t for t in texts)]


def release(writer: Writer) -> None:
    """End a function: release the tile configuration if it has used tiles."""
    if _CONFIG in writer.frames[0].memo:
        writer.emit("call void @llvm.x86.tilerelease()")


@dataclass(frozen=True)
class _Code:
    emitter: StatementEmitter
    plan: ProductPlan

    @property
    def nest(self) -> ProductNest:
        return self.plan.nest

    def whole(self) -> None:
        """All tiles at a time."""
        p, loops = self.nest.product, self.nest.loops
        repeated, rows, columns = self.nest.extents()
        points = product(*(range(number_of(e)) for e in repeated))
        others = [{loops[n].var: Const(x, INDEX) for n, x in zip(p.repeated, point, strict=True)} for point in points]
        down = [{**at, **place} for at in others for place in _places(loops[p.rows].var, rows)]
        across = _places(loops[p.columns].var, columns)
        size = (number_of(rows) // (len(down) // len(others)), number_of(columns) // len(across))
        self._block(down, across, size)

    def one_by_one(self) -> None:
        """One tile after the other, with as many rows and columns as are left."""
        p, loops = self.nest.product, self.nest.loops
        repeated, rows, columns = self.nest.extents()
        bindings = self.emitter.bindings

        def tiles(at: dict[Expr, Expr]) -> None:
            block_sizes: list[int | str] = []
            for var, extent in ((loops[p.rows].var, rows), (loops[p.columns].var, columns)):
                size = bindings.scalar(imin(SIDE, extent - at[var]))
                block_sizes.append(size if isinstance(size, int) else size.name)
            self._block([at], [at], (block_sizes[0], block_sizes[1]))

        def along(places: list[tuple[Var, Expr, int]], at: dict[Expr, Expr]) -> None:
            if not places:
                tiles(at)
                return
            (var, extent, size), *rest = places
            if isinstance(extent, Const) and number_of(extent) <= size:
                along(rest, {**at, var: Const(0, INDEX)})
                return
            number: Var = Var(f"{var.name}.tile", INDEX)
            bindings.simplify.ranges[number] = (0, UNKNOWN[1])

            def body(place: Runtime) -> None:
                bindings.env[number] = place
                along(rest, {**at, var: number * size})
                del bindings.env[number]

            self.emitter.serial_loop((extent + (size - 1)) // size, body)

        others = [(loops[n].var, extent, 1) for n, extent in zip(p.repeated, repeated, strict=True)]
        along([*others, (loops[p.rows].var, rows, SIDE), (loops[p.columns].var, columns, SIDE)], {})

    def _block(self, down: Sequence[Place], across: Sequence[Place], size: tuple[int | str, int | str]) -> None:
        """So many tiles of sums of one size, in registers."""
        (rows, columns), words = size, self.nest.depth
        n_sums, by_rows = len(down) * len(across), len(down) <= len(across)
        kept, passing = range(n_sums, n_sums + min(len(down), len(across))), n_sums + min(len(down), len(across))
        own, other = TileSize(rows, words), TileSize(words, columns)
        sizes = {n: TileSize(rows, columns) for n in range(n_sums)}
        sizes |= dict.fromkeys(kept, own if by_rows else other) | {passing: other if by_rows else own}
        self._configure(sizes)
        points = list(enumerate((d, a) for d in down for a in across))
        for n, (d, a) in points:
            if self.plan.is_cleared:
                self._emit(f"tilezero(i8 {n})")
            else:
                self._move("tileloadd64", n, self.plan.sums, {**d, **a})
        held, moving = (down, across) if by_rows else (across, down)
        operands = (self.plan.left, self.plan.right) if by_rows else (self.plan.right, self.plan.left)

        def step() -> None:
            for register, place in zip(kept, held, strict=True):
                self._move("tileloadd64", register, operands[0], place)
            for m, place in enumerate(moving):
                self._move("tileloadd64", passing, operands[1], place)
                for n, register in enumerate(kept):
                    total = n * len(across) + m if by_rows else m * len(across) + n
                    pair = (register, passing) if by_rows else (passing, register)
                    self._multiply(total, *pair)

        self._reduce(self.nest.outer, step)
        for n, (d, a) in points:
            self._move("tilestored64", n, self.plan.sums, {**d, **a})

    def _reduce(self, loops: Sequence[For], step: Callable[[], None]) -> None:
        for stmt in self.nest.ahead.get(len(self.nest.outer) - len(loops), ()):
            self.emitter.emit(stmt)
        if not loops:
            step()
            return
        env = self.emitter.bindings.env

        def body(var: Runtime) -> None:
            env[loops[0].var] = var
            self._reduce(loops[1:], step)
            del env[loops[0].var]

        self.emitter.serial_loop(loops[0].extent, body)

    def _multiply(self, total: int, left: int, right: int) -> None:
        tile = self.nest.product.dot.row.tile
        assert tile is not None
        self.emitter.writer.emit(f"call void @{tile[0]}(i8 {total}, i8 {left}, i8 {right})")

    def _move(self, how: str, register: int, operand: TileOperand, place: Place) -> None:
        """A tile from memory or into it; a variable that no place is given for is where its loop begins."""
        p, addresses = self.nest.product, self.emitter.addresses
        own: dict[Expr, Expr] = {x.var: Const(0, INDEX) for x in self.nest.loops[p.first :]}
        simplify = self.emitter.bindings.simplify
        indices = tuple(simplify(substitute(i, {**own, **place})) for i in operand.load.indices)
        access = addresses.access(operand.load.buffer, indices)
        pointer = addresses.at(access, operand.load.dtype)
        self._emit(f"{how}(i8 {register}, ptr {pointer}, i64 {operand.step})")

    def _emit(self, text: str) -> None:
        self.emitter.writer.emit(f"call void @llvm.x86.{text}")

    def _configure(self, sizes: Mapping[int, TileSize]) -> None:
        """Sets the tiles' sizes where they are not set already."""
        w, memo = self.emitter.writer, self.emitter.writer.frames[0].memo
        if _CONFIG not in memo:
            with w.hoisted(0):
                memo[_CONFIG] = w.value(f"alloca [{CONFIG_BYTES} x i8], align {CONFIG_BYTES}", "a")
                memo[_SIZES] = w.value("alloca i64, align 8", "a")
                w.emit(f"store i64 0, ptr {memo[_SIZES]}, align 8")
        key = (_SIZES, tuple(sizes.items()))
        number = memo.setdefault(key, str(1 + sum(isinstance(k, tuple) and k[0] == _SIZES for k in memo)))
        known = w.value(f"load i64, ptr {memo[_SIZES]}, align 8")
        wanted = self._wanted(number, sizes)
        is_set = w.value(f"icmp eq i64 {known}, {wanted}")
        change, done = w.new_label("sizes"), w.new_label("sized")
        w.branch(f"i1 {is_set}, label %{done}, label %{change}")
        w.label(change)
        fixed = [_PALETTE] + [0] * (CONFIG_BYTES - 1)
        for register, size in sizes.items():
            if isinstance(size.rows, int):
                fixed[_ROWS_AT + register] = size.rows
            if isinstance(size.words, int):
                fixed[_COLUMNS_AT + 2 * register] = 4 * size.words
        text = ", ".join(f"i8 {n}" for n in fixed)
        w.emit(f"store <{CONFIG_BYTES} x i8> <{text}>, ptr {memo[_CONFIG]}, align {CONFIG_BYTES}")
        for register, size in sizes.items():
            self._own_size(size.rows, _ROWS_AT + register, 0)
            self._own_size(size.words, _COLUMNS_AT + 2 * register, 2)
        w.emit(f"call void @llvm.x86.ldtilecfg(ptr {memo[_CONFIG]})")
        w.emit(f"store i64 {wanted}, ptr {memo[_SIZES]}, align 8")
        w.branch(f"label %{done}")
        w.label(done)
        self.emitter.values.forget()

    def _own_size(self, size: int | str, at: int, shift: int) -> None:
        """A size that is known at run time, put into its byte of the configuration; in bytes it is below 256."""
        if isinstance(size, int):
            return
        w = self.emitter.writer
        where = w.value(f"getelementptr inbounds i8, ptr {w.frames[0].memo[_CONFIG]}, i64 {at}", "p")
        byte = w.value(f"trunc i64 {w.value(f'shl i64 {size}, {shift}')} to i8")
        w.emit(f"store i8 {byte}, ptr {where}, align 1")

    def _wanted(self, number: str, sizes: Mapping[int, TileSize]) -> str:
        """The number of a configuration, with the sizes that differ from one time to the next."""
        w, wanted = self.emitter.writer, number
        for place, size in enumerate(dict.fromkeys(x for pair in sizes.values() for x in pair if isinstance(x, str))):
            shifted = w.value(f"shl i64 {size}, {16 * (place + 1)}")
            wanted = w.value(f"add i64 {shifted}, {wanted}")
        return wanted


def _places(var: Var, extent: Expr) -> list[Place]:
    """Where the tiles along a loop begin."""
    size = number_of(extent) // number_of(parts(extent))
    return [{var: Const(n, INDEX)} for n in range(0, number_of(extent), size)]
