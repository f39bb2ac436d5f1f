"""What the processor executes in the hot loop of a register tile: multiply-adds on registers, and nothing kept on the stack."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from autosched import te
from autosched.runtime.jit import emit_assembly
from autosched.schedule import CacheWrite, ComputeAt, Reorder, Split, State, Unroll, Vectorize, initial_state
from autosched.target import host_arch, parse_target
from tests.codegen.running import build
from tests.schedule.graphs import matmul, register_tile

pytestmark = pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")

LABEL = re.compile(r"(\.L\w+):")
JUMP = re.compile(r"\s+j\w+\s+(\.L\w+)")
STORE_TO_STACK = re.compile(r"\s+v?mov\w+\s+%[xyz]mm\d+, .*\(%rsp")


@dataclass(frozen=True)
class Loop:
    lines: tuple[str, ...]

    def count(self, word: str) -> int:
        return sum(word in line for line in self.lines)

    @property
    def spills(self) -> list[str]:
        return [line for line in self.lines if "(%rsp" in line or STORE_TO_STACK.match(line)]


def innermost_loops(assembly: str) -> list[Loop]:
    """Pieces from a label to the jump back to it, without a label in between."""
    found: list[Loop] = []
    label, start = "", 0
    lines = assembly.splitlines()
    for n, line in enumerate(lines):
        if match := LABEL.match(line):
            label, start = match[1], n
        elif (match := JUMP.match(line)) and match[1] == label:
            found.append(Loop(tuple(lines[start : n + 1])))
    return found


def tile(m: int, n: int, unroll: int, rows: int, columns: int) -> State:
    return initial_state(matmul(rows, columns, 64)).apply(*register_tile(m, n, unroll))


TILES = [
    ("haswell", 6, 16, 8, "ymm"),
    ("haswell", 12, 8, 8, "ymm"),  # what is spread is used once
    ("haswell", 14, 8, 8, "ymm"),
    ("haswell", 3, 32, 8, "ymm"),  # more vectors in a row than there are registers beside the accumulators
    ("haswell", 2, 48, 8, "ymm"),
    ("skylake-avx512", 12, 32, 16, "zmm"),
    ("znver4", 8, 48, 16, "zmm"),
]


@pytest.mark.parametrize("unroll", [1, 4])
@pytest.mark.parametrize(("mcpu", "m", "n", "lanes", "register"), TILES)
def test_the_hot_loop_is_multiply_adds_on_registers(mcpu, m, n, lanes, register, unroll):
    target = parse_target(f"llvm -mcpu={mcpu}")
    assembly = emit_assembly(build(tile(m, n, unroll, 2 * m, 2 * n), target, 1).ir, target)
    hot = [loop for loop in innermost_loops(assembly) if loop.count("vfmadd")]
    assert len(hot) == 1
    (loop,) = hot
    assert loop.count("vfmadd") == m * n // lanes * unroll
    assert loop.count(f"%{register}") >= loop.count("vfmadd")
    assert not loop.spills
    assert not loop.count("call")
    overhead = len(loop.lines) - loop.count("vfmadd") - (m + n // lanes) * unroll
    assert overhead <= 10, "\n".join(loop.lines)


@pytest.mark.parametrize("unroll", [1, 2, 8])
@pytest.mark.parametrize(("mcpu", "m", "n"), [("haswell", 7, 16), ("znver4", 7, 64)])
def test_what_is_spread_is_loaded_for_each_vector_rather_than_spilled(mcpu, m, n, unroll):
    target = parse_target(f"llvm -mcpu={mcpu}")
    vectors = n * 4 // target.vector_bytes
    assembly = emit_assembly(build(tile(m, n, unroll, 2 * m, 2 * n), target, 1).ir, target)
    (loop,) = (loop for loop in innermost_loops(assembly) if loop.count("vfmadd"))
    assert loop.count("vfmadd") == m * vectors * unroll
    assert not loop.spills
    instructions = len(loop.lines) - loop.count("#MEMBARRIER")
    assert instructions <= (2 * m + 1) * vectors * unroll + 10, "\n".join(loop.lines)


@pytest.mark.parametrize(("mcpu", "n", "vector"), [("haswell", 16, "<8 x float>"), ("znver4", 32, "<16 x float>")])
def test_accumulators_are_loaded_and_stored_once_in_a_block(mcpu, n, vector):
    """However often it is written out: LLVM need not find that out."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    texts = [build(tile(6, n, unroll, 12, 2 * n), target, 1).ir for unroll in (1, 8)]
    assert len({text.count(f"store {vector}") for text in texts}) == 1
    once, often = (text.count(f"load {vector}") for text in texts)
    assert often - once == 7 * 2, "the rows of the operand"


@pytest.mark.parametrize(("mcpu", "expected"), [("haswell", True), ("skylake-avx512", False)])
def test_where_strength_is_reduced_inner_loops_do_not_show_what_their_pointers_are_made_of(mcpu, expected):
    target = parse_target(f"llvm -mcpu={mcpu}")
    text = build(tile(6, 32, 1, 12, 64), target, 1).ir
    hidden = set(re.findall(r"(%p\d+) = call ptr @llvm.strip.invariant.group", text))
    assert bool(hidden) is expected
    outer = re.findall(r"ptr (%p\d+), i64 %i", text)
    assert outer
    assert not expected or hidden.issuperset(outer)
    assert "mul nsw" not in text, "a step is the size of an array"


@pytest.mark.parametrize("unroll", [1, 4])
def test_what_moves_both_operands_is_gone_through_first(unroll):
    """Of X[p, b, k, n] W[b, c, k] for two pixels, two b and three c, all of W would wait for the second pixel."""
    target = parse_target("llvm -mcpu=haswell")
    x, w = te.placeholder((4, 2, 64, 8), name="X"), te.placeholder((2, 3, 64), name="W")
    k = te.reduce_axis(64, "k")
    out = te.compute((4, 2, 3, 8), lambda p, b, c, n: te.sum(x[p, b, k, n] * w[b, c, k], axis=k), "Y")
    state = initial_state(te.ComputeDAG(out)).apply(
        CacheWrite("Y"),
        Split("Y", "p", (2,)),
        ComputeAt("Y.acc", "Y", "p.0", "register"),
        Split("Y.acc", "k", (unroll,)),
        Reorder("Y.acc", ("k.0", "k.1", "p", "b", "c", "n")),
        *(Unroll(s, a) for s, axes in (("Y", ("p.1", "b", "c")), ("Y.acc", ("k.1", "p", "b", "c"))) for a in axes),
        *(Vectorize(s, "n") for s in ("Y", "Y.acc")),
    )
    assembly = emit_assembly(build(state, target, 1).ir, target)
    (loop,) = (loop for loop in innermost_loops(assembly) if loop.count("vfmadd"))
    assert loop.count("vfmadd") == 12 * unroll
    assert not loop.spills
    assert len(loop.lines) <= (12 + 4 + 6) * unroll + 10, "\n".join(loop.lines)


def test_short_tiles_at_the_edges_are_as_clean():
    target = parse_target("llvm -mcpu=haswell")
    assembly = emit_assembly(build(tile(6, 16, 1, 15, 41), target, 1).ir, target)
    hot = [loop for loop in innermost_loops(assembly) if loop.count("vfmadd")]
    assert sorted(loop.count("vfmadd") for loop in hot) == [6, 6, 12, 12] or len(hot) == 4
    assert not any(loop.spills for loop in hot)


@pytest.mark.parametrize(("mcpu", "n"), [("haswell", 8), ("haswell", 16), ("skylake-avx512", 32)])
def test_lanes_behind_the_last_column_are_not_kept(mcpu, n):
    """All that is done with a tile at the border is in the same lanes: nobody asks what the others hold."""
    target = parse_target(f"llvm -mcpu={mcpu}")
    assembly = emit_assembly(build(tile(6, n, 1, 14, 2 * n + 5), target, 1).ir, target)
    hot = [loop for loop in innermost_loops(assembly) if loop.count("vfmadd")]
    assert len(hot) == 4
    for loop in hot:
        masked = [line for line in loop.lines if "vfmadd" in line and "{%k" in line]
        assert not loop.spills
        assert not loop.count("blend")
        assert not masked


def test_without_multiply_add_it_is_products_and_sums():
    target = parse_target("llvm -mcpu=nehalem")
    assembly = emit_assembly(build(tile(3, 16, 1, 6, 32), target, 1).ir, target)
    hot = [loop for loop in innermost_loops(assembly) if loop.count("mulps") >= 12]
    assert len(hot) == 1
    assert hot[0].count("addps") == 12
    assert "vfmadd" not in assembly


@pytest.mark.parametrize(
    ("mcpu", "m", "n", "width"), [("haswell", 8, 24, 32), ("znver4", 16, 48, 64), ("nehalem", 8, 24, 16)]
)
def test_what_does_not_fit_into_registers_lies_on_whole_cache_lines(mcpu, m, n, width):
    target = parse_target(f"llvm -mcpu={mcpu}")
    assembly = emit_assembly(build(tile(m, n, 1, 2 * m, 2 * n), target, 1).ir, target)
    assert STORE_TO_STACK.search(assembly)
    aligned = f"andq\t$-{width}, %rsp" in assembly
    assert aligned == (width > 16)  # 16 bytes is what the caller keeps


def test_what_a_row_shares_is_taken_from_it_in_memory() -> None:
    """x - mean is x + -mean: of a sum, either operand may be in memory. Not in a row of a vector or two."""
    target = parse_target("llvm -mcpu=haswell")
    for columns, differences in ((64, 0), (16, 2)):
        x, mean = te.placeholder((4, columns), name="X"), te.placeholder((4,), name="M")
        state = initial_state(te.ComputeDAG([te.compute((4, columns), lambda i, j, x=x, m=mean: x[i, j] - m[i], "Y")]))
        text = emit_assembly(build(state.apply(Vectorize("Y", "j")), target, 1).ir, target)
        assert text.count("vsubps") == differences
        assert len(re.findall(r"vaddps\s+-?\d*\(", text)) == (0 if differences else 8)
