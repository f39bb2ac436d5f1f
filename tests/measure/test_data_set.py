"""One launch on a data set: what a kernel is called with, what is looked at afterwards, and what files are refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autosched.measure.buffers import GuardedBuffer
from autosched.measure.check import (
    Array,
    CandidateError,
    CheckedKernel,
    DataSet,
    Packing,
    check,
    launch,
    load_data_sets,
    open_array,
    prepare,
)
from autosched.measure.problem import DATA_SETS, write_data_set, write_limits
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import ALIASED_BYTES, SHIFT

X, W = ArraySpec("X", (4,), "float32"), ArraySpec("W", (3, 4), "float32")
Y, Z = ArraySpec("Y", (3, 4), "float32"), ArraySpec("Z", (4,), "float32")
Body = Callable[[dict[str, Array]], None]


def addresses(args: int, n: int) -> list[int | None]:
    return list((ctypes.c_void_p * n).from_address(args))


def arrays_at(args: int) -> dict[str, Array]:
    """Flat, and seen with an element too many."""
    lengths = {"X": 4, "W": 12, "Y": 12, "Z": 4}
    return {
        name: np.ctypeslib.as_array((ctypes.c_float * (n + 1)).from_address(address or 0))
        for (name, n), address in zip(lengths.items(), addresses(args, 4), strict=True)
    }


def kernel(run: Body, winograd: int = 0) -> CheckedKernel:
    def call(args: int, workspace: int, threads: int) -> int:
        a = arrays_at(args)
        a["scratch"] = np.ctypeslib.as_array((ctypes.c_float * 17).from_address(workspace))
        run(a)
        return 0

    return CheckedKernel(call, 1, GuardedBuffer(64), winograd=winograd)


def add(a: dict[str, Array]) -> None:
    a["Y"][:12] = a["W"][:12] + np.tile(a["X"][:4], 3)
    a["Z"][:4] = a["X"][:4]


def also(change: Body) -> Body:
    def run(a: dict[str, Array]) -> None:
        add(a)
        change(a)

    return run


@pytest.fixture
def data(tmp_path: Path) -> list[DataSet]:
    for n, name in enumerate(DATA_SETS):
        x, w = np.arange(4.0) + 10 * n, np.arange(12.0).reshape(3, 4) - 5
        expected = [(w + x, np.zeros((3, 4))), (x, np.zeros(4))]
        write_data_set(tmp_path, name, (X, W), (Y, Z), {"X": x, "W": w}, expected)
        write_limits(tmp_path, name, (Y, Z), [(w + x, np.ones((3, 4))), (x, np.ones(4))], tile=4)
    return load_data_sets(tmp_path, (X, W), (Y, Z))


def test_a_kernel_is_called_on_each_data_set_in_order(data: list[DataSet]) -> None:
    calls: list[tuple[int, int, int]] = []
    add_them = kernel(add)

    def call(*arguments: int) -> int:
        calls.append(arguments)
        return add_them.call(*arguments)

    workspace = GuardedBuffer(64)
    check(CheckedKernel(call, 3, workspace), data)
    assert calls == [(d.args, workspace.address, 3) for d in data]
    assert addresses(data[0].args, 5)[4] is None, "no packed weights"


def test_results_lie_beside_the_largest_input(data: list[DataSet]) -> None:
    _, w, y, z, _ = (address or 0 for address in addresses(data[0].args, 5))
    assert (y - w) % ALIASED_BYTES == SHIFT
    assert (z - w) % ALIASED_BYTES == 2 * SHIFT


def test_a_kernel_without_inputs(tmp_path: Path) -> None:
    write_data_set(tmp_path, "ones", (), (Z,), {}, [(np.ones(4), np.zeros(4))])
    data = DataSet(tmp_path, "ones", (), (Z,))

    def call(args: int, workspace: int, threads: int) -> int:
        (ctypes.c_float * 4).from_address(addresses(args, 1)[0] or 0)[:] = [1.0] * 4
        return 0

    launch(CheckedKernel(call, 1, GuardedBuffer(0)), data)


def set_at(name: str, *places: int) -> Body:
    def change(a: dict[str, Array]) -> None:
        a[name][list(places)] = 77.0

    return change


@pytest.mark.parametrize(
    ("change", "fault", "sentence"),
    [
        (set_at("X", 4), "out_of_bounds", "the kernel wrote outside input X: 4 bytes after its end, the nearest 1 bytes away"),
        (set_at("Y", 12), "out_of_bounds", "the kernel wrote outside output Y: 4 bytes after its end, the nearest 1 bytes away"),
        (set_at("scratch", 16), "out_of_bounds", "the kernel wrote outside the workspace: 4 bytes after its end, the nearest 1 bytes away"),
        (set_at("W", 6, 9), "clobbered_input", "the kernel changed 2 elements of its input W, the first W[1, 2]"),
        (set_at("Z", 3), "wrong_result", f"Z[3] is 77, expected 3 +- 0; 1 of 4 elements are wrong (data set {DATA_SETS[0]})"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_mended(data: list[DataSet], change: Body, fault: str, sentence: str) -> None:
    bad = kernel(also(change))
    with pytest.raises(CandidateError) as caught:
        launch(bad, data[0])
    assert (caught.value.fault, str(caught.value)) == (fault, sentence)
    launch(CheckedKernel(kernel(add).call, 1, bad.workspace), data[0])


def test_what_lies_behind_an_input_is_no_number(data: list[DataSet]) -> None:
    def reads_behind(a: dict[str, Array]) -> None:
        a["Z"][3] += 0 * a["X"][4]

    with pytest.raises(CandidateError, match=r"Z\[3\] is nan"):
        launch(kernel(also(reads_behind)), data[0])


def test_kernels_with_winograds_tiles_have_their_own_bounds(data: list[DataSet]) -> None:
    def off_by(difference: float) -> Body:
        return also(lambda a: a["Z"].__setitem__(slice(0, 4), a["X"][:4] + difference))

    launch(kernel(off_by(0.5), winograd=4), data[0])
    with pytest.raises(CandidateError, match=r"Z\[0\] is 2, expected 0 \+- 1;"):
        launch(kernel(off_by(2.0), winograd=4), data[0])
    with pytest.raises(CandidateError, match=r"Z\[0\] is 0.5, expected 0 \+- 0;"):
        launch(kernel(off_by(0.5)), data[0])


def test_packing_that_writes_behind_its_block_is_seen_before_the_kernel_runs(data: list[DataSet]) -> None:
    block = GuardedBuffer(16)

    def call(args: int, workspace: int, threads: int) -> int:
        ctypes.memset(block.address + 16, 0, 1)
        return 0

    packing = Packing(call, block)
    with pytest.raises(CandidateError, match="outside the packed weights: 1 bytes after its end"):
        prepare(CheckedKernel(lambda *_: 0, 1, GuardedBuffer(64), packing), packing, data[0])


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((4, 3), np.float32), r"x\.npy holds float32\(4, 3\), expected float32\(3, 4\)"),
        (np.zeros((3, 4)), r"x\.npy holds float64\(3, 4\), expected float32\(3, 4\)"),
        (np.zeros((3, 4), np.uint16), r"x\.npy holds uint16\(3, 4\), expected float32\(3, 4\)"),
        (np.full((3, 4), None, object), "Python objects in dtype"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path: Path, array: Array, sentence: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=sentence):
        open_array(tmp_path / "x.npy", W)


@pytest.mark.parametrize("part", ["value", "bound"])
def test_nothing_of_a_data_set_is_unpickled(data: list[DataSet], tmp_path: Path, part: str) -> None:
    np.save(tmp_path / f"{DATA_SETS[0]}.out1.{part}.npy", np.full(4, None, object))
    with pytest.raises(ValueError, match="Python objects in dtype"):
        DataSet(tmp_path, DATA_SETS[0], (X, W), (Y, Z))


def test_bfloat16_is_stored_as_its_bits(tmp_path: Path) -> None:
    spec = ArraySpec("H", (3,), "bfloat16")
    np.save(tmp_path / "h.npy", np.array([0x3F80, 0xC000, 0x7F80], np.uint16))
    found = open_array(tmp_path / "h.npy", spec)
    assert found.dtype == spec.numpy_dtype
    assert found.astype(np.float32).tolist() == [1.0, -2.0, np.inf]
    np.save(tmp_path / "h.npy", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="holds float32"):
        open_array(tmp_path / "h.npy", spec)
