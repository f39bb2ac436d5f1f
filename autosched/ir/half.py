"""float16 and bfloat16: types that numbers are stored in. Arithmetic on them is float32's.

An element that is read becomes a float32 before anything is done with it, and a result becomes one of the two by a
cast, which rounds once, to even: IEEE 754 binary16, and the upper half of a binary32. NumPy has no bfloat16 of its own;
the one used is that of ml_dtypes (JAX's), which is imported when it is first needed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

HALVES = frozenset({"float16", "bfloat16"})


@lru_cache(maxsize=64)
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's type for one of ours."""
    import numpy as np

    if dtype == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(dtype)


def nearest(value: float, dtype: str) -> float:
    """The number of `dtype` (one of HALVES) that `value` rounds to; too large a one becomes infinite."""
    import numpy as np

    with np.errstate(over="ignore"):
        return float(numpy_dtype(dtype).type(value))


def bits(value: float, dtype: str) -> int:
    """The 16 bits of `value` rounded to `dtype`."""
    import numpy as np

    with np.errstate(over="ignore"):
        return int(np.asarray(value).astype(numpy_dtype(dtype)).view(np.uint16))
