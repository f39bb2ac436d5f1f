"""Two dtypes that autosched does not have: the rows that would be all that they take, but for the emitters' words.

The fixture `float8` makes both known for a test's duration.
"""

from __future__ import annotations

from autosched.ir.dtype import Dtype

E4M3 = Dtype(
    "float8_e4m3fn", "f", 8, exponent_bits=4, wider="float32", has_infinity=False, in_ml_dtypes=True, dlpack_code=10
)
E5M2 = Dtype("float8_e5m2", "f", 8, exponent_bits=5, wider="float32", in_ml_dtypes=True, dlpack_code=12)
NEW = (E4M3, E5M2)
