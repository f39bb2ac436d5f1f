"""Arrays in device memory of types that NumPy alone does not know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autosched.ir.dtype import DTYPES
from autosched.runtime.gpu.device import DeviceMemory
from autosched.runtime.gpu.foreign_arrays import borrow


class Tensor:
    """As torch's: the interface names bits, the array its type."""

    def __init__(self, typestr: str, dtype: object) -> None:
        self.dtype = dtype
        self.__cuda_array_interface__ = {
            "shape": (3, 5), "typestr": typestr, "data": (4096, False), "version": 3, "stream": 2, "strides": None,
        }  # fmt: skip


def borrowed(value: Tensor) -> Any:
    device: Any = SimpleNamespace(kind="cuda", stream=1, adopt=DeviceMemory)
    return borrow(device, "x", value, None)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_array_says_its_type(name: str) -> None:
    kind = DTYPES[name].numpy_dtype
    found = borrowed(Tensor(f"<V{kind.itemsize}", f"torch.{name}"))
    assert (found.dtype, found.shape, found.memory.nbytes) == (kind, (3, 5), 15 * kind.itemsize)


@pytest.mark.parametrize(("typestr", "dtype"), [("<V2", "torch.float8_e5m2"), ("|V2", None), ("<V2", "unknown")])
def test_other_bits_stay_bits(typestr: str, dtype: object) -> None:
    assert borrowed(Tensor(typestr, dtype)).dtype == np.dtype("V2")


def test_plain_types_are_the_interfaces() -> None:
    assert borrowed(Tensor("<f4", "torch.float32")).dtype == np.dtype("float32")
