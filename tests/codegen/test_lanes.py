"""Indices that divide, in vectors: what each lane reads is known, and picked from whole vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from autosched import te
from autosched.codegen.llvm.strided import covering
from autosched.codegen.llvm.writer import Writer
from autosched.schedule import Split, Unroll, Vectorize, initial_state
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import build, check_kernel, check_outputs, run, targets_in_turn

SERVER = parse_target("llvm -mcpu=skylake-avx512")
DTYPES = ("float32", "float64", "int8", "int64", "bool", "float16", "bfloat16")


def repeated(n: int, times: int, first: int = 0, dtype: str = "float32") -> ComputeDAG:
    """The array ends with the last element that is read."""
    x = te.placeholder(((n - 1 + first) // times + 1,), dtype, "X")
    return ComputeDAG(te.compute((n,), lambda i: x[(i + first) // times], name="Y"))


def cyclic(n: int, period: int, first: int = 0, dtype: str = "float32") -> ComputeDAG:
    x = te.placeholder((period,), dtype, "X")
    return ComputeDAG(te.compute((n,), lambda i: x[(i + first) % period], name="Y"))


def shuffled(n: int, r: int, dtype: str = "float32") -> ComputeDAG:
    """Column r x + c is column x of plane c, as in a pixel shuffle."""
    x = te.placeholder((r, -(-n // r)), dtype, "X")
    return ComputeDAG(te.compute((n,), lambda i: x[i % r, i // r], name="Y"))


def interleaved(n: int, dtype: str = "float32") -> ComputeDAG:
    a, b = (te.placeholder((-(-n // 2),), dtype, name) for name in "AB")
    return ComputeDAG(te.compute((n,), lambda i: te.select(te.equal(i % 2, 0), a[i // 2], b[i // 2]), name="Y"))


def check(dag: ComputeDAG, *tiles: int, on: Sequence[Target] | None = None) -> None:
    state = initial_state(dag)
    check_kernel(dag, state.apply(Vectorize("Y", "i")), on=on)
    for tile in tiles:
        check_kernel(dag, state.apply(Split("Y", "i", (tile,)), Vectorize("Y", "i.1")), on=on)


@pytest.mark.parametrize("times", [2, 3, 7, 33])
@pytest.mark.parametrize("n", [1, 31, 200])
def test_repeated_elements(n, times):
    for column, first in enumerate((0, 1, times - 1)):
        check(repeated(n, times, first), 16, 48, on=targets_in_turn(times, column, 3))


@pytest.mark.parametrize("period", [2, 5, 16, 40])
@pytest.mark.parametrize("n", [3, 61, 1000])
def test_cycles(n, period):
    for column, first in enumerate((0, 3)):
        check(cyclic(n, period, first), 16, 20, on=targets_in_turn(n, column, 2))


@pytest.mark.parametrize("r", [2, 3, 4, 8])
@pytest.mark.parametrize("n", [7, 48, 101])
def test_planes_that_take_turns(n, r):
    on = targets_in_turn((7, 48, 101).index(n), (2, 3, 4, 8).index(r), 4)
    check(shuffled(n, r), 16, 48, on=on)
    check(interleaved(n), 16, 24, on=on)


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype):
    for dag in (
        repeated(139, 2, 1, dtype),
        repeated(139, 3, 0, dtype),
        shuffled(139, 2, dtype),
        interleaved(139, dtype),
    ):
        check(dag, 64)


def test_many_vectors_are_a_loop():
    for dag in (repeated(5003, 2), repeated(5003, 3, 1), cyclic(5003, 4), shuffled(5003, 2), interleaved(5003)):
        check(dag, 1024)


@pytest.mark.parametrize("inner", [5, 16, 21])
def test_a_quotient_beside_other_axes(inner):
    x = te.placeholder((9, 4, inner), "float32", "X")
    y = te.compute((8, 2 * inner), lambda i, j: x[i + j % 2, i // 2, j // 2] + x[i, (i + 1) % 4, j // 2], name="Y")
    state = initial_state(ComputeDAG(y)).apply(Vectorize("Y", "j"))
    check_kernel(ComputeDAG(y), state)
    check_kernel(ComputeDAG(y), state.apply(Unroll("Y", "i")))


def test_under_a_condition_that_differs_by_lane():
    x = te.placeholder((20,), "float32", "X")
    padded = te.compute((47,), lambda i: te.select((i >= 3) & (i < 43), x[(i - 3) // 2], 0.0), name="Y")
    turns = te.compute((60,), lambda i: te.select(te.equal(i % 3, 1), x[i // 3], 0.0), name="Y")
    chosen = te.compute((40,), lambda i: te.select(x[i // 2] > 0.0, x[i // 4], x[19 - i // 2]), name="Y")
    for y in (padded, turns, chosen):
        check(ComputeDAG(y), 16)


@pytest.mark.parametrize(("dag", "loads"), [(repeated(64, 2), 4), (shuffled(64, 2), 8), (interleaved(64), 8)])
def test_whole_vectors_are_read(dag, loads):
    text = build(initial_state(dag).apply(Vectorize("Y", "i")), SERVER, 1).ir
    assert len(re.findall(r"load <8 x float>", text)) == loads
    assert "gather" not in text
    assert "div" not in text
    assert "rem" not in text


def test_every_element_lies_in_a_vector_and_none_beyond():
    for times, first, lanes in ((2, 0, 16), (2, 1, 16), (3, 0, 16), (3, 2, 4), (5, 1, 8)):
        steps = [(n + first) // times for n in range(lanes)]
        held = {at for start, size in covering(steps, lanes) for at in range(start, start + size)}
        assert held == set(steps)
    assert covering([0, 100, 1, 101, 2, 102, 3, 103], 8) == [(0, 4), (100, 4)]
    assert covering([0, 50, 100, 150], 4) == []


def test_a_whole_vector_covers_lanes_where_it_exists():
    odd = [1, 1, 3, 3, 5, 5, 7, 7]
    assert covering(odd, 8) == [(1, 4), (4, 4)]
    assert covering(odd, 8, 0) == [(0, 8)], "the buffer consists of whole vectors"
    assert covering([n - 1 for n in odd], 8, 7) == [(-1, 8)], "the first lane is element 1 of one"
    assert covering(odd, 8, 2) == [(1, 4), (4, 4)], "the lanes lie in two of them"
    assert covering([0, 0, 1, 1, 2, 2, 3, 3], 8, 0) == [(0, 4)], "one load as it is"


def test_arrays_that_take_turns_in_rows_of_any_length():
    """Whether a column exists is not known without the condition, so the lanes of each array are masked."""
    a, b = (te.placeholder((3, 39), "float32", name) for name in "AB")
    y = te.compute((3, 77), lambda i, j: te.select(te.equal(j % 2, 0), a[i, j // 2], b[i, j // 2]), name="Y")
    split = initial_state(ComputeDAG(y)).apply(Split("Y", "j", (2, 16)), Vectorize("Y", "j.2"))
    check_kernel(ComputeDAG(y), split)
    assert "gather" not in build(split, SERVER, 1).ir


@pytest.mark.parametrize(("n", "times"), [(300, 3), (303, 3), (40, 5), (2331, 7), (1000, 24)])
def test_chunks_begin_at_multiples_of_the_divisor(n, times):
    dag = repeated(n, times)
    (sketch,) = sketches(dag, SERVER, 1)
    (width,) = (p for p in sketch.params if p.kind == "vector")
    assert all(v % times == 0 or n <= v <= 16 * 16 for v in width.domain)
    for row in sample(sketch, 3, np.random.default_rng(n)):
        values = {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)}
        assert "gather" not in build(sketch.state, SERVER, 1, values).ir
    data = make_inputs(dag, 0, "normal")
    (sketch,) = sketches(dag, parse_target("cpu"), 1)
    for row in sample(sketch, 3, np.random.default_rng(n)):
        values = {p.name: int(v) for p, v in zip(sketch.params, row, strict=True)}
        made = run(build(sketch.state, parse_target("cpu"), 1, values), dag, data, parse_target("cpu"))
        check_outputs(dag, data, made, f"{values}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("columns", [1, 3, 6, 7, 13, 31])
def test_the_last_lanes_of_a_row_are_written_in_powers_of_two(columns, dtype):
    """And nothing beyond them, which would fault."""
    x = te.placeholder((3, columns), dtype, name="X")
    dag = ComputeDAG(te.compute((3, columns), lambda i, j: x[2 - i, j], name="Y"))
    check_kernel(dag, initial_state(dag).apply(Vectorize("Y", "j")))


def test_stores_that_leave_lanes_out_are_for_processors_that_have_them():
    """VMASKMOVPS takes twelve cycles on Zen 3."""
    x = te.placeholder((4, 7), "float32", name="X")
    state = initial_state(ComputeDAG(te.compute((4, 7), lambda i, j: x[3 - i, j], name="Y"))).apply(Vectorize("Y", "j"))
    text = build(state, parse_target("llvm -mcpu=haswell"), 1).ir
    assert "masked.store" not in text
    assert all(f"store {kind} " in text for kind in ("<4 x float>", "<2 x float>", "float"))
    wide = build(state, parse_target("llvm -mcpu=skylake-avx512"), 1).ir
    assert "masked.store.v8f32" in wide
    assert "store <4 x float>" not in wide


@pytest.mark.parametrize("n", [5, 64, 83])
def test_indices_are_converted_from_32_bits_where_they_fit(n):
    X = te.placeholder((1,), name="X")

    def position(i, j):
        return te.cast(i * n + j, "float32") * X[0] + te.cast(j % 7 - i // 2, "float32")

    dag = ComputeDAG(te.compute((6, n), position, name="Y"))
    state = initial_state(dag)
    for steps in ((Vectorize("Y", "j"),), (Split("Y", "j", (16,)), Vectorize("Y", "j.1"))):
        check_kernel(dag, state.apply(*steps))
        text = build(state.apply(*steps), parse_target("llvm -mcpu=haswell"), 1).ir
        assert not re.search(r"sitofp (<\d+ x )?i64", text)
    far = ComputeDAG(te.compute((n,), lambda i: te.cast(i * 2**31 - 5, "float64") + te.cast(X[0], "float64"), name="Y"))
    check_kernel(far, initial_state(far).apply(Vectorize("Y", "i")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_that_lanes_share_under_a_condition_is_loaded_once(dtype):
    """Of the last two rows no lane may read X, which ends before them."""
    x, z = te.placeholder((4,), dtype, "X"), te.placeholder((6, 9), dtype, "Z")
    dag = ComputeDAG(te.compute((6, 9), lambda i, j: te.select(i + j < 4, x[i], z[i, j]), name="Y"))
    for tile in (4, 8):
        state = initial_state(dag).apply(Split("Y", "j", (tile,)), Vectorize("Y", "j.1"))
        check_kernel(dag, state)
        assert "masked.gather" not in build(state, parse_target("llvm -mcpu=haswell"), 1).ir


@pytest.mark.parametrize("n", [5, 97, 100, 130, 144])
def test_arms_that_exist_in_all_iterations_of_a_split_are_loaded_without_a_mask(n):
    """The last elements of X are read by the last iteration of the outer loop, which has fewer inner ones."""
    x, z = te.placeholder((n // 2 + 2,), "int16", "X"), te.placeholder((n,), "int16", "Z")
    y = te.compute((n,), lambda i: te.select(z[i] > 3, x[(i + 1) // 2 + 1], x[i // 2] + z[i]), name="Y")
    for tiles in ((2, 16), (3, 32), (64,)):
        state = initial_state(ComputeDAG(y)).apply(Split("Y", "i", tiles), Vectorize("Y", f"i.{len(tiles)}"))
        check_kernel(ComputeDAG(y), state)
        assert "select i1" not in build(state, SERVER, 1).ir


@pytest.mark.parametrize("factor", [1, 3, 1 << 28, 1 << 40])
def test_indices_are_compared_in_32_bits_where_they_fit(factor):
    x = te.placeholder((9, 21), name="X")
    dag = ComputeDAG(te.compute((9, 21), lambda i, j: te.select(j * factor <= 2 * i * factor, x[i, j], 0.0), name="Y"))
    state = initial_state(dag).apply(Split("Y", "j", (8,)), Vectorize("Y", "j.1"))
    check_kernel(dag, state)
    text = build(state, parse_target("llvm -mcpu=haswell"), 1).ir
    wide = {bits for bits in ("32", "64") if re.search(rf"icmp \w+ <8 x i{bits}>", text)}
    assert wide == {"32" if factor < 1 << 20 else "64"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_backwards_are_one_vector_under_a_condition_as_well(dtype):
    """A row of X mirrored at its end; where no such load exists, small numbers are loaded one by one."""
    x = te.placeholder((3, 20), dtype, "X")
    for columns in (24, 27):
        dag = ComputeDAG(te.compute((3, columns), lambda i, j: x[i, te.min(j, 38 - j)], name="Y"))
        state = initial_state(dag).apply(Split("Y", "j", (8,)), Vectorize("Y", "j.1"))
        check_kernel(dag, state)
        alone = "select i1" in build(state, parse_target("llvm -mcpu=haswell"), 1).ir
        assert columns > 24 or alone == (dtype not in ("float32", "float64", "int64"))


@pytest.mark.parametrize(("step", "d"), [(1, 2), (1, 3), (2, 5), (63, 129), (-1, 3), (5, 100)])
@pytest.mark.parametrize("extent", [1, 37, 200])
def test_lanes_are_divided_by_numbers_without_divisions_of_vectors(extent, step, d):
    """Of neither quotients nor remainders is known where in a period vectors begin."""
    least = min(0, step * (extent - 1))
    most = (6 + step * (extent - 1) * (step > 0) - least) // d
    x, z = te.placeholder((most + 1,), name="X"), te.placeholder((1,), name="Z")

    def value(i, j):
        at = i + step * j - least
        return te.select(te.equal(at % d, 1), x[at // d], te.cast(at % d - at // d, "float32") * z[0])

    dag = ComputeDAG(te.compute((7, extent), value, name="Y"))
    for column, steps in enumerate(((Vectorize("Y", "j"),), (Split("Y", "j", (16,)), Vectorize("Y", "j.1")))):
        state = initial_state(dag).apply(*steps)
        check_kernel(dag, state, on=targets_in_turn(extent + d, column, 2))
        text = build(state, parse_target("llvm -mcpu=haswell"), 1).ir
        assert not re.search(r"[us](div|rem) <", text)


def test_quotients_of_quotients_are_divided_in_32_bits():
    x = te.placeholder((9, 83), name="X")

    def value(i, j):
        return te.select(te.equal((i // 2 + (j + i) // 5) % 3, 0), x[i, j], te.cast((7 * (j % 9) - i) // 4, "float32"))

    dag = ComputeDAG(te.compute((9, 83), value, name="Y"))
    state = initial_state(dag).apply(Split("Y", "j", (16,)), Vectorize("Y", "j.1"))
    check_kernel(dag, state)
    assert not re.search(r"[us](div|rem) <\d+ x i64", build(state, parse_target("llvm -mcpu=haswell"), 1).ir)


def test_gathers_have_indices_of_32_bits_where_they_fit():
    x = te.placeholder((300,), name="X")
    dag = ComputeDAG(te.compute((7, 64), lambda i, j: x[(i + 9 * j) // 2], name="Y"))
    text = build(initial_state(dag).apply(Vectorize("Y", "j")), parse_target("llvm -mcpu=skylake-avx512"), 1).ir
    assert text.count("getelementptr float, ptr %b0, <16 x i32>") == 4


def test_what_lies_across_in_a_register_buffer_goes_by_way_of_memory():
    """A block knows its vectors as long as they are of one length and do not overlap."""
    w = Writer()
    w.hold("%a", 0, 8, "%x", "store x")
    w.hold("%a", 8, 8, "%y", "store y")
    w.hold("%a", 8, 8, "%z", "store z")
    w.hold("%b", 0, 8, "%u", "store u")
    assert (w.held("%a", 0, 8), w.held("%a", 8, 8), w.held("%a", 16, 8)) == ("%x", "%z", None)
    assert w.text() == ""
    assert w.held("%a", 8, 4) is None
    assert w.text() == "  store x\n  store z"
    assert w.held("%a", 0, 8) is None
    w.hold("%a", 4, 8, "%v", "store v")
    assert w.held("%a", 4, 8) is None, "it overlaps with two others"
    w.branch("label %next")
    assert w.text().endswith("  store v\n  store u\n  br label %next")
    assert w.held("%b", 0, 8) is None


def unpacked(n: int, bits: int, first: int = 0, by: str = "int32") -> ComputeDAG:
    """Numbers of few bits, as many in a byte as it has room for, with shifts in `by`."""
    per = 8 // bits
    x = te.placeholder(((n - 1 + first) // per + 1,), "uint8", "X")

    def number(i):
        shift = te.cast((i + first) % per * bits, by)
        return te.cast((te.cast(x[(i + first) // per], by) >> shift) & ((1 << bits) - 1), "float32")

    return ComputeDAG(te.compute((n,), number, name="Y"))


@pytest.mark.parametrize(("bits", "first"), [(4, 0), (4, 2), (4, 1), (2, 0), (1, 0)])
def test_numbers_of_few_bits(bits, first):
    check(unpacked(101, bits, first), 64)
    check(unpacked(101, bits, first, "uint8"), 64)


def test_bytes_shifted_by_data():
    x, s = te.placeholder((32,), "uint8", "X"), te.placeholder((64,), "uint8", "S")
    shift = lambda i: te.cast(s[i] & 7, "int32") + te.cast(i % 2, "int32")  # noqa: E731
    y = te.compute((64,), lambda i: te.cast(x[i // 2], "int32") >> shift(i), name="Y")
    check(ComputeDAG(y), 64)


@pytest.mark.parametrize("by", ["int32", "uint8"])
@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_numbers_of_few_bits_are_shifted_out_of_words(mcpu, by):
    target = parse_target(f"llvm -mcpu={mcpu}")
    lanes = target.vector_bytes // 4
    text = build(initial_state(unpacked(lanes, 4, by=by)).apply(Vectorize("Y", "i")), target, 1).ir
    assert text.count(f"lshr <{lanes} x i32>") == 1, text
    assert not re.search(r"zext|<\d+ x i8>", text), text
    assert len(re.findall(r"shufflevector", text)) == 1, text


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_words_of_few_bits_are_loaded_once_for_all_rows(mcpu):
    target = parse_target(f"llvm -mcpu={mcpu}")
    lanes = target.vector_bytes // 4
    x, a = te.placeholder((lanes // 2,), "uint8", "X"), te.placeholder((3,), name="A")
    bits = lambda i: te.cast(x[i // 2], "int32") >> te.cast(4 * (i % 2), "int32") & 15  # noqa: E731
    y = te.compute((3, lanes), lambda m, i: a[m] * te.cast(bits(i), "float32"), name="Y")
    text = build(initial_state(ComputeDAG(y)).apply(Unroll("Y", "m"), Vectorize("Y", "i")), target, 1).ir
    assert len(re.findall(r"load (<2 x )?i32\b", text)) == 1, text


@pytest.mark.parametrize(("factor", "halves"), [(2.0, 4), (0.1, 0)], ids=["in 16 bits", "in 32 bits"])
def test_numbers_of_four_bits_are_picked_from_tables(factor, halves):
    """Those of a word's upper half from a table of halves, where these are all that there is of a number."""
    words = te.placeholder((48,), "int32", "W")
    codes = lambda i: [te.cast((words[i] >> 4 * n if n else words[i]) & 15, "float32") - 8 for n in range(8)]  # noqa: E731
    y = te.compute((48,), lambda i: sum((c * factor) * (n + 1) for n, c in enumerate(codes(i))), name="Y")
    state = initial_state(ComputeDAG(y)).apply(Split("Y", "i", (16,)), Vectorize("Y", "i.1"))
    text = build(state, parse_target("llvm -mcpu=skylake-avx512"), 1).ir
    assert text.count("call <32 x i16> @llvm.x86.avx512.permvar.hi.512") == halves, text
    assert text.count("call <16 x float> @llvm.x86.avx512.permvar.sf.512") == 8 - halves, text
    assert len(re.findall(r"[al]shr <16 x i32>", text)) == (3 if halves else 7), text
    check(ComputeDAG(y), 16)
