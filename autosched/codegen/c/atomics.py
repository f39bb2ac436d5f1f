"""Atomic updates of global memory as C text.

CUDA has a function for each update; sums of signed 64-bit integers use the unsigned one. OpenCL 1.2 has functions for
32-bit integers; other types take compare-and-swap loops, for 64 bits with cl_khr_int64_base_atomics.
Sources: CUDA C++ Programming Guide, "Atomic Functions"; the OpenCL 1.2 specification, 6.12.11 and 9.3.
"""

from __future__ import annotations

from autosched.codegen.c.expressions import Expressions

COMBINATIONS = {"add": "{a} + {b}", "min": "{a} < {b} ? {a} : {b}", "max": "{a} > {b} ? {a} : {b}"}

COMPARE_AND_SWAP_LOOP = """\
void {name}(volatile __global {type}* at, const {type} value) {{
  {bits} old = as_{bits}(*at), seen;
  do {{
    seen = old;
    const {type} before = as_{type}(seen);
    old = {swap}((volatile __global {bits}*)at, seen, as_{bits}(({type})({combined})));
  }} while (old != seen);
}}"""
INT64_ATOMICS = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable"


def atomic_update(op: str, dtype: str, element: str, value: str, c: Expressions) -> str:
    """Return a statement that updates `element` with `value`; `c.helpers` gets the function that OpenCL needs
    for it.
    """
    function = c.dialect.atomics[op]
    if dtype in c.dialect.atomic_types:
        if (op, dtype) == ("add", "int64"):
            return f"{function}((unsigned long long*)&{element}, (unsigned long long)({value}));"
        return f"{function}(&{element}, {value});"
    kind, is_wide = c.type(dtype), dtype in ("float64", "int64")
    name = f"atomic_{op}_{kind}"
    text = COMPARE_AND_SWAP_LOOP.format(
        name=name,
        type=kind,
        bits="long" if is_wide else "int",
        swap="atom_cmpxchg" if is_wide else "atomic_cmpxchg",
        combined=COMBINATIONS[op].format(a="before", b="value"),
    )
    c.helpers[name] = f"{INT64_ATOMICS}\n{text}" if is_wide else text
    return f"{name}(&{element}, {value});"
