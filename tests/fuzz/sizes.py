"""Random built-in operators with sizes that vary, against the reference.

python -m tests.fuzz.sizes --seed 0 --seconds 60 --target opencl

A kernel has one to three open sizes. It is called with sizes around multiples of vectors and tiles, with those beside
them, so that most calls take code that exists, and with outputs between elements that nothing may be written to.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

import numpy as np

import autosched as at
from autosched.errors import AutoschedError, UsageError
from autosched.kernel.sizes.sized_kernel import SizedKernel
from autosched.te import ComputeDAG
from autosched.te.operators.registry import WORKLOADS, build
from autosched.te.reference.evaluate import evaluate

MOST = 64
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 24, 29, 31, 32, 33, 37, 47, 48, 49, 53, 56, 60, 61, 63, 64)
FIXED = (2, 3, 4, 5, 8, 12, 16, 17)
FENCE, GARBAGE = 64, 77


def check_one(rng: random.Random, tally: Counter[str], target: str) -> None:
    """Compile a random operator of random open sizes, and compare its calls. Raises AssertionError for one that fails."""
    name = rng.choice(sorted(WORKLOADS))
    numbers = list(WORKLOADS[name].numbers)
    varying = rng.sample(numbers, rng.randint(1, min(3, len(numbers))))
    fixed = {a: rng.choice(FIXED) for a in numbers if a not in varying}
    try:
        kernel = at.compile(name, sizes=dict.fromkeys(varying, (1, MOST)), settings=fixed, target=target)
    except UsageError:  # a size that arrays do not tell, or that the operator refuses
        tally["refused"] += 1
        return
    sizes = [{a: rng.choice(SIZES) for a in varying} for _ in range(4)]
    sizes += [{a: min(MOST, max(1, n + rng.choice((-1, 0, 1)))) for a, n in each.items()} for each in sizes]
    for each in sizes:
        try:
            dag, _ = build(name, settings={**fixed, **each})
        except AutoschedError:
            continue
        tally["calls"] += 1
        _check_call(f"{name} {fixed} {each}", kernel, each, dag)
    tally["kernels"] += 1
    tally["variants"] += len(kernel.variants)


def _check_call(what: str, kernel: SizedKernel, sizes: dict[str, int], dag: ComputeDAG) -> None:
    arrays = _arrays(dag)
    own = kernel.of(**sizes)
    fenced = [np.full(int(np.prod(o.shape)) + 2 * FENCE, GARBAGE).astype(o.dtype) for o in own.outputs]
    outputs = [a[FENCE:-FENCE].reshape(o.shape) for a, o in zip(fenced, own.outputs, strict=True)]
    own(**arrays, out=tuple(outputs) if len(outputs) > 1 else outputs[0])
    for around, output, reference in zip(fenced, outputs, evaluate(dag, arrays), strict=True):
        assert (np.concatenate([around[:FENCE], around[-FENCE:]]) == around[0]).all(), f"{what}: writes outside"
        expected = np.asarray(reference.value, "float64").reshape(output.shape)
        assert np.allclose(output.astype("float64"), expected, rtol=2e-3, atol=2e-3, equal_nan=True), what


def _arrays(dag: ComputeDAG) -> dict[str, np.ndarray]:
    rng, arrays = np.random.default_rng(0), {}
    for t in dag.inputs:
        real, whole = (
            rng.standard_normal(t.public_shape),
            rng.integers(0, 2 if t.dtype == "bool" else 3, t.public_shape),
        )
        arrays[t.name] = (real if "float" in t.dtype else whole).astype(t.dtype)
    return arrays


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    tally, end, n_failures, seed = Counter[str](), time.monotonic() + options.seconds, 0, options.seed
    while time.monotonic() < end:
        try:
            check_one(random.Random(seed), tally, options.target)
        except (AssertionError, AutoschedError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            n_failures += 1
            print(f"seed {seed}: {type(error).__name__} {str(error)[:300]}", flush=True)
        seed += 1
    print(f"{dict(tally)}, {n_failures} failures in seeds {options.seed} to {seed - 1}")
    return 1 if n_failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
