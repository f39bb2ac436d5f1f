"""Each PTX instruction of the simulator against a formula in NumPy, and what it says of instructions used wrongly.

The formulas are those of `experiments.gpu.forms`, to which a card is held too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autosched.codegen.c.source import PixelBox
from autosched.errors import UsageError
from autosched.runtime.simulator.assembly import find
from autosched.runtime.simulator.build import find_compiler
from autosched.runtime.simulator.execute import EXTREMES, Execution, Mode, build, execute
from autosched.runtime.simulator.instructions import INSTRUCTIONS
from autosched.runtime.simulator.maps import encoded
from autosched.te.operators.registry import build as build_workload
from autosched.te.reference.evaluate import evaluate, within
from experiments.gpu.forms import all_forms
from experiments.gpu.forms.blocks import named, registers
from experiments.gpu.forms.form import Array, InstructionForm, map_of
from experiments.gpu.forms.sums import added_up, sum_of
from experiments.gpu.forms.warpgroups import Wgmma, form
from experiments.gpu.forms.warps import KINDS, numbers

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")
CHECKED = Mode(checked=True)
FORMS = all_forms()


def ran(given: InstructionForm, *modes: Mode) -> list[tuple[Execution, Mapping[str, Array]]]:
    """What came of it in each mode, all of which are checked or none."""
    known = frozenset(name for name in given.memory if name.isupper())
    simulated = build(given.text, modes[0].checked)
    found = []
    for mode in modes:
        memory = given.fresh()
        found.append((execute(simulated, [given.launch], memory, known, mode), memory))
    return found


@pytest.mark.parametrize("name", FORMS)
def test_instructions_do_what_their_formula_says(name: str) -> None:
    """Late and forward with every access examined, at once and backward without; sums are cut off to the last bit."""
    for result, memory in (*ran(FORMS[name], CHECKED), *ran(FORMS[name], EXTREMES[1])):
        assert not result.mistakes, [str(m) for m in result.mistakes]
        assert FORMS[name].complaint(memory) is None
        if "mma" in name and "f32" in name:
            assert (memory["c"].reshape(-1).view(np.float32) == FORMS[name].expected["c"].values).all()


# Rows of which nothing can be seen, or of which there is a form by another name.
SAID_ELSEWHERE = {"same", "mbarrier_inval", "mbarrier_expect_tx", "nothing", "wait_for_kernels"}


def test_there_is_a_form_of_each_instruction() -> None:
    opcodes = {
        words[0]
        for given in FORMS.values()
        for text in re.findall(r'asm volatile\("(.*?)"', given.text)
        for statement in text.strip("{} ").split(";")
        if (words := statement.split()) and not words[0].startswith((".reg", "setp", "selp"))
    }
    seen = {id(find(opcode)[0]) for opcode in opcodes}
    missing = [row.pattern for row in INSTRUCTIONS if id(row) not in seen and row.function not in SAID_ELSEWHERE]
    assert not [pattern for pattern in missing if "im2col" not in pattern]


def test_registers_of_operands_are_read_until_the_wait() -> None:
    change = "for (int i = 0; i < 4; ++i) own[i] = 0;"
    changed = form(Wgmma("bf16", "f32", 16, 128, in_registers=True), change)
    assert changed.complaint(ran(changed, CHECKED)[0][1]) is not None
    assert changed.complaint(ran(changed, Mode(late=False))[0][1]) is None


@pytest.mark.parametrize("name", ["cp.async.bulk to global", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"])
def test_the_engine_sees_what_is_behind_a_fence(name: str) -> None:
    body = FORMS[name].body.replace("fence();", "")
    ((result, _),) = ran(replace(FORMS[name], body=body), CHECKED)
    assert [mistake.kind for mistake in result.mistakes] == ["unfenced"]


def test_a_barrier_is_for_those_that_it_names() -> None:
    """The second half of the first pair reads what the first half overwrites."""
    given = named()
    ((result, _),) = ran(replace(given, body=given.body.replace("told[t", "s[t")), CHECKED)
    assert [mistake.kind for mistake in result.mistakes] == ["race"]


@pytest.mark.parametrize(("taken", "whole"), [(40, True), (232, True), (41, False), (16, False)])
def test_registers_are_asked_for_in_eights(taken: int, whole: bool) -> None:
    given = registers(taken, 24)
    body = "if (threadIdx.x < 32) take();\n  c[threadIdx.x] = A[threadIdx.x];"
    ((result, _),) = ran(replace(given, body=body, threads=32), CHECKED)
    assert result.is_whole == whole


@pytest.mark.parametrize(("given", "taken", "found"), [(40, 232, []), (40, 240, ["deadlock"]), (24, 240, [])])
def test_registers_are_there_when_others_gave_them_back(given: int, taken: int, found: list[str]) -> None:
    """384 threads begin with 168 each, and a multiprocessor has 65536."""
    ((result, _),) = ran(registers(taken, given), CHECKED)
    assert [mistake.kind for mistake in result.mistakes] == found


# Maps


@pytest.mark.parametrize(("shape", "box", "swizzle", "message"), [
    ((8, 8), (8, 300), 0, "boxes have 1 to 256 elements"),
    ((8, 8), (2, 8), 0, "a row of a box must have a multiple of 16 bytes, got 8"),
    ((8, 64), (64, 8), 128, "at most the 128 bytes of the swizzle, got 256"),
    ((8, 7), (4, 8), 0, "strides must be multiples of 16 bytes"),
    ((8, 8), (4, 8), 48, "a swizzle has 0, 32, 64 or 128 bytes"),
    ((1,) * 6, (4,), 0, "a tensor has 1 to 5 dimensions"),
])  # fmt: skip
def test_maps_that_no_driver_makes(shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoded(map_of("A", np.zeros(shape, np.float32), box, swizzle), 256)


@pytest.mark.parametrize(("columns", "message"), [
    (PixelBox((-200, 0), (0, 0), 8, 8), "corners are 2 numbers each from -128 to 127"),
    (PixelBox((0, 0), (0, 0), 3, 8), "a multiple of 16 bytes, got 12"),
    (PixelBox((0, 0), (0, 0), 8, 2000), "1 to 1024 pixels"),
])  # fmt: skip
def test_images_that_no_driver_maps(columns: PixelBox, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoded(map_of("A", np.zeros((1, 4, 4, 8), np.float32), columns), 256)


def test_a_tensor_that_begins_in_between() -> None:
    with pytest.raises(
        UsageError, match="no tensor map map of A can be encoded: it must begin at a multiple of 16 bytes"
    ):
        encoded(map_of("A", np.zeros((8, 8), np.float32), (8, 8)), 264)


def test_tiles_begin_at_whole_16_bytes() -> None:
    given = FORMS["tile 2d 13x24 from (4, 2)"]
    ((result, _),) = ran(replace(given, body=given.body.replace("{4, 2}", "{5, 2}")), CHECKED)
    assert [m.kind for m in result.mistakes] == ["refused"]
    assert "copies from element 5 on along the innermost dimension, no multiple of 16 bytes" in str(result.mistakes[0])


def test_shared_memory_does_not_begin_at_address_0() -> None:
    given = form(Wgmma("bf16", "f32", 16, 128))
    ((result, _),) = ran(replace(given, body=given.body.replace("(base + 0)", "0")), CHECKED)
    assert [m.kind for m in result.mistakes] == ["outside"]


# Sums


# Of twice a product: elements that an H200 had beyond 1e-5 of the sum of absolute values, and the most that one of them
# was away from a sum that is cut off once.
SEEN = (("e4m3", 16, 555, 0.005279541015625), ("e5m2", 16, 397, 0.00250244140625), ("e4m3", 64, 2017, 0.00732421875),
        ("e4m3", 256, 7744, 0.00762939453125), ("bf16", 64, 0, 9.5367431640625e-07), ("f16", 16, 0, 1.9073486328125e-06),
        ("tf32", 16, 0, 1.9073486328125e-06))  # fmt: skip


@pytest.mark.parametrize(("kind", "n", "beyond", "most"), SEEN)
def test_sums_of_warpgroups_are_those_that_were_seen(kind: str, n: int, beyond: int, most: float) -> None:
    (_, x), (_, y) = numbers(kind, (64, KINDS[kind][1]), 0), numbers(kind, (n, KINDS[kind][1]), 1)
    found = added_up(sum_of(kind, True), x, y.T, (kind, kind), 2)
    assert (np.abs(found - 2 * (x @ y.T)) > 1e-5 * (np.abs(x) @ np.abs(y).T + 1)).sum() == beyond
    once = np.zeros_like(found)
    for _ in range(2):
        exact = once + x @ y.T
        near = exact.astype(np.float32)
        away = np.abs(near) > np.abs(exact)
        once = np.where(away, np.nextafter(near, np.float32(0)), near).astype(np.float64)
    assert np.abs(found - once).max() == most


def test_the_bound_of_a_sum_covers_what_is_cut_off() -> None:
    """A large product first, then small ones of which each loses nearly all."""
    dag, _ = build_workload("gmm", (1, 8, 8, 256), {"dtype": "float16", "out_dtype": "float32"})
    x, y = (np.full(shape, 0.12, np.float16) for shape in ((1, 8, 256), (1, 256, 8)))
    x[..., 0], y[:, 0] = 1000, 1000
    (reference,) = evaluate(dag, {t.name: array for t, array in zip(dag.inputs, (x, y), strict=True)})
    wide = x[0].astype(np.float64), y[0].astype(np.float64)
    found = added_up(sum_of("f16", True), *wide, ("f16", "f16"), 1)[None]
    assert np.abs(found - wide[0] @ wide[1]).min() > 1
    assert within(reference, found.astype(np.float32)).all()
