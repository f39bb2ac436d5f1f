"""Tensorize: a reduction of products by an instruction that adds up several of them (`ir/instructions/dots.py`).

    C[i, j] = sum over k of A[i, k] * B[k, j]                                                  depth d

    B.words[k, j] = Word(B[d k, j], ..., B[d k + d - 1, j])                                    a stage of its own
    C[i, j] = sum over k of Dot(Word(A[i, d k], ..., A[i, d k + d - 1]), B.words[k, j])        ceil(K / d) steps

The other operand's words are read where they lie when they are whole and adjacent and need not be extended; otherwise
it gets a stage of words as well. What a word has beyond K is zero, so nothing is read outside of an operand.

Some intrinsics take an operand with its first bits flipped (`dots.py`). It is flipped ahead of time, and what that
adds is taken off once, by those who read the sums, instead of both in every step. Where operands are read as they lie,
the larger one is flipped as it is read:

    A.words[i, k] = Word(A[i, d k], ..., A[i, d k + d - 1]) ^ 128's
    B.sums[j] = sum over k of Dot(128's, B.words[k, j])                                        a stage of its own
    C[i, j] - B.sums[j]                                                                        for C[i, j], where read
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosched.ir.expr import INDEX, Const, Expr, Load, Var, const, select
from autosched.ir.instructions.dots import FIRST_BITS, INTRINSICS, Dot, Intrinsic, Word, factors
from autosched.ir.visit import free_vars, substitute
from autosched.schedule.stage import Stage, StageAxis, StageOp, default_stage
from autosched.schedule.state import State
from autosched.schedule.steps.loops import check
from autosched.schedule.steps.stages import check_readers, check_untouched, insert, shape_of_buffer


@dataclass(frozen=True)
class Tensorize:
    """Reduce `stage` over `axis` by `intrinsic`; the operand `packed` is stored in words, as stage `<packed>.words`,
    and where another product has such stages already as `<packed>.words.<stage>` (`made_of`). With no name for it both
    operands are read as they lie, which has to be in whole words.

    Refused for anything but one sum of products of two different buffers of the intrinsic's types.
    """

    stage: str
    axis: str
    intrinsic: str
    packed: str

    def apply(self, state: State) -> State:
        stage = state.stage(self.stage)
        where = f"tensorize({self.stage}, {self.axis}, {self.intrinsic})"
        check(self.intrinsic in INTRINSICS, f"{where}: known are {', '.join(INTRINSICS)}")
        row, op, axis = INTRINSICS[self.intrinsic], stage.op, stage.op.axis(self.axis)
        check_untouched(where, state, stage)
        check(axis.reduce and not op.guards, f"{where}: {self.axis} is not a whole reduction axis")
        pair = factors(op.body[0], row.accumulator) if len(op.body) == 1 and op.reducer and op.reducer.is_sum else None
        check(pair is not None, f"{where}: {self.stage} is not a sum of products in {row.accumulator}")
        assert pair is not None
        kept = self.packed or min((x.buffer for x in pair), key=lambda b: _size(state, b))
        swapped = row.flips is not None and pair[row.flips].buffer == kept  # both are of one type
        if swapped or (pair[0].dtype, pair[1].dtype) != (row.a, row.b):
            pair = (pair[1], pair[0])
        check((pair[0].dtype, pair[1].dtype) == (row.a, row.b), f"{where}: the operands are not {row.a} and {row.b}")
        names = [x.buffer for x in pair]
        packed = self.packed in names or not self.packed
        check(len(set(names)) == 2 and packed, f"{where}: {self.packed} is not one of two operands")
        words: list[Expr] = []
        tag = _tag(state, self.stage, names)
        with_sums = row.flips is not None and not state.is_output(stage)
        for load in pair:
            dim = word_dim(load, axis.var)
            check(dim is not None, f"{where}: {self.axis} alone is no index of {load.buffer}")
            assert dim is not None
            flipped = with_sums and load.buffer != kept
            ahead = bool(self.packed) and (row.is_extended or flipped)
            if load.buffer != self.packed and not ahead and is_whole(state, load, dim, axis, row.depth):
                words.append(_flipped(_word(load, dim, axis.var, row.depth, None), flipped))
                continue
            check(bool(self.packed), f"{where}: {load.buffer} has no whole words along {self.axis}")
            name = f"{load.buffer}.words{tag}"
            state = _with_words(name, state, load, dim, axis, row.depth, self.stage, flipped)
            words.append(Load(name, load.indices, "int32"))
        size = const(-(-_length(axis) // row.depth), INDEX)
        axes = tuple(replace(a, extent=size) if a is axis else a for a in op.reduce_axes)
        new = replace(op, reduce_axes=axes, body=(Dot(self.intrinsic, words[0], words[1]),))
        if with_sums:
            state, new = _with_sums(f"{kept}.sums{tag}", state, new, row)
        after = replace(default_stage(new, stage.scope), at=stage.at)
        return check_readers(where, state.with_stage(after))


def made_of(state: State, tensor: str, kind: str, reader: str) -> str:
    """The name of what Tensorize made of `tensor` for the stage `reader`: of its "words", or of their "sums"."""
    own = f"{tensor}.words.{reader}" in state.stage(reader).op.reads
    return f"{tensor}.{kind}.{reader}" if own else f"{tensor}.{kind}"


def _tag(state: State, stage: str, operands: list[str]) -> str:
    """What tells the new stages of this product from those of one that shares an operand with it."""
    plain = (f"{buffer}.{kind}" for buffer in operands for kind in ("words", "sums"))
    return f".{stage}" if any(map(state.taken, plain)) else ""


def word_dim(load: Load, axis: Var) -> int | None:
    """Return the dimension that the axis indexes alone."""
    dims = [n for n, i in enumerate(load.indices) if axis in free_vars(i)]
    return dims[0] if len(dims) == 1 and load.indices[dims[0]] is axis else None


def is_whole(state: State, load: Load, dim: int, axis: StageAxis, depth: int) -> bool:
    """Return whether the words of an operand are contiguous in memory, without a remainder."""
    producer = state.producer(load.buffer)
    plain = producer is None or producer.layout is None
    return plain and dim == len(load.indices) - 1 and _length(axis) % depth == 0


def _length(axis: StageAxis) -> int:
    assert isinstance(axis.extent, Const), f"axis {axis.name} has no constant extent"
    return axis.extent.number


def _word(load: Load, dim: int, var: Var, depth: int, limit: int | None) -> Expr:
    """The word of the elements at depth * var + (0 .. depth - 1), zero from `limit` on."""
    parts = []
    for n in range(depth):
        at = var * depth + n
        element: Expr = Load(load.buffer, tuple(substitute(i, {var: at}) for i in load.indices), load.dtype)
        zero = const(0, load.dtype)
        parts.append(element if limit is None else select(at < limit, element, zero))
    word: Word = Word(tuple(parts))
    return word


def _with_words(
    name: str, state: State, load: Load, dim: int, axis: StageAxis, depth: int, reader: str, flipped: bool
) -> State:
    """The state with a stage `name` that stores the operand in words along dimension `dim`, their bits `flipped` or
    not."""
    length = _length(axis)
    shape = list(shape_of_buffer(state, load.buffer))
    shape[dim] = const(-(-length // depth), INDEX)
    axes = tuple(StageAxis(Var(f"d{n}"), e) for n, e in enumerate(shape))
    plain = Load(load.buffer, tuple(a.var for a in axes), load.dtype)
    body = _word(plain, dim, axes[dim].var, depth, length if length % depth else None)
    op = StageOp(name, axes, (), (_flipped(body, flipped),), None, (name,), ("int32",))
    return insert(state, default_stage(op), reader)


def _flipped(word: Expr, flipped: bool) -> Expr:
    return word ^ const(FIRST_BITS, "int32") if flipped else word


def _with_sums(name: str, state: State, op: StageOp, row: Intrinsic) -> tuple[State, StageOp]:
    """`op` with the instruction for its words, one operand's bits flipped, and the state with the sums of the other
    one, a stage `name`, which its readers take off."""
    assert row.flips is not None
    (dot,) = op.body
    words = list(dot.children)
    used = free_vars(words[1 - row.flips])
    axes = tuple(a for a in op.axes if a.var in used)
    alone = list(words)
    alone[row.flips] = const(FIRST_BITS, "int32")
    sums = replace(op, name=name, axes=axes, body=(Dot(row.plain, alone[0], alone[1]),), buffers=(name,))
    places = [n for n, a in enumerate(op.axes) if a in axes]
    for reader in state.consumers(state.stage(op.name)):
        state = state.with_stage(_less(reader, op.buffers[0], name, places))
    return insert(state, default_stage(sums), op.name), replace(op, body=(Dot(row.plain, words[0], words[1]),))


def _size(state: State, buffer: str) -> int:
    return math.prod(e.number for e in shape_of_buffer(state, buffer) if isinstance(e, Const))


def _less(reader: Stage, buffer: str, sums: str, places: list[int]) -> Stage:
    """The reader with `sums`, at these of the indices, taken off what it reads of `buffer`."""
    values: dict[Expr, Expr] = {
        x: x - Load(sums, tuple(x.indices[n] for n in places), x.dtype) for x in reader.op.loads_from(buffer)
    }
    return replace(reader, op=replace(reader.op, body=tuple(substitute(v, values) for v in reader.op.body)))
