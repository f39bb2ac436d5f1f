"""Types of elements that are not NumPy's own, known and new, pass through DLPack, torch, files and headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.source import KernelSource
from autosched.ir.dtype import DTYPES, Dtype
from autosched.measure.check import open_array
from autosched.measure.problem import plain
from autosched.runtime.gpu import dlpack
from autosched.runtime.kernel import like_inputs
from autosched.runtime.spec import ArraySpec
from autosched.runtime.tensors import as_numpy
from autosched.session import export as deploy
from autosched.target import parse_target
from tests.float8 import NEW
from tests.runtime.test_dlpack import Shared

pytestmark = pytest.mark.usefixtures("float8")
EACH = pytest.mark.parametrize("row", [DTYPES["bfloat16"], *NEW], ids=lambda row: row.name)
NUMBERS = [[0.0, -0.5, 1.0], [2.0, 96.0, float("nan")]]


def numbers(row: Dtype) -> np.ndarray:
    return np.array(NUMBERS, np.float32).astype(row.numpy_dtype)


def check(found: np.ndarray, row: Dtype) -> None:
    assert found.dtype == row.numpy_dtype
    np.testing.assert_array_equal(found.astype(np.float32), NUMBERS)


@EACH
def test_dlpack_tells_the_type_of_our_arrays(row: Dtype) -> None:
    array = numbers(row)
    found = dlpack.look_into(Shared(array).__dlpack__())
    assert (found.dtype, found.shape, found.address) == (row.numpy_dtype, (2, 3), array.ctypes.data)
    check(as_numpy(ArraySpec("A", (2, 3), row.name), Shared(array)), row)


@EACH
def test_torch_takes_and_gives_tensors_of_it(row: Dtype) -> None:
    torch = pytest.importorskip("torch")
    (tensor,) = like_inputs([torch.zeros(1)], [numbers(row)])
    assert tensor.dtype is getattr(torch, row.name)
    assert tensor.float().numpy().tolist()[0] == NUMBERS[0]
    seen = as_numpy(ArraySpec("A", (2, 3), row.name), tensor)
    check(seen, row)
    assert seen.ctypes.data == tensor.data_ptr(), "no copy"


@EACH
def test_files_hold_its_bits(row: Dtype, tmp_path: Path) -> None:
    bits = plain(numbers(row))
    assert bits.dtype == row.bits_dtype
    np.save(tmp_path / "a.npy", bits, allow_pickle=False)
    check(open_array(tmp_path / "a.npy", ArraySpec("A", (2, 3), row.name)), row)


@EACH
def test_headers_have_an_unsigned_integer_of_its_bits(row: Dtype) -> None:
    specs = (ArraySpec("A", (2, 3), row.name),), (ArraySpec("B", (2, 3), "float16"),)
    source = KernelSource("k", "", 0, 1)
    text = deploy.header_text(deploy.Deployable("k", "k", source, parse_target("cpu"), *specs))
    assert f"const uint{row.bits}_t *A, uint16_t *B" in text
