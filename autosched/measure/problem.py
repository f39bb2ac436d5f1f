"""The data that candidates of a workload are checked with, as .npy files that tuner and workers share.

For each data set of DATA_SETS, input `i` is in `<set>.in<i>.npy`; output `j` has its reference value and error bound
(float64 or int64, as `te.reference.evaluate` gives them) in `<set>.out<j>.value.npy` and `.bound.npy`, and the same as
a closed interval of the output's own dtype in `.low.npy` and `.high.npy`: a kernel's element x is right exactly when
low <= x <= high. Comparing in the output's own dtype costs a fraction of a conversion to float64. Where Winograd
convolutions are accepted, kernels with tiles of m outputs have limits of their own: `.bound.m.npy`, `.low.m.npy` and
`.high.m.npy`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES, is_foreign
from autosched.runtime.spec import ArraySpec
from autosched.target import usable_cores
from autosched.target.far_weights import NEAR

if TYPE_CHECKING:
    from autosched.te.dag import ComputeDAG

DATA_SETS = ("normal", "structured")  # random normal values; distinct ones, which show permuted or dropped terms
MANY_CORES = 8  # machines with so many cores have memory for several data sets at a time
Array = npt.NDArray[Any]
_PART = 1 << 18  # elements whose limits are computed at a time: temporaries of 2 MB stay in cache


@dataclass(frozen=True)
class Problem:
    """A workload's arrays in kernel-argument order, and the directory of the data sets (0700, made by the caller).

    `weights_in`: where a kernel finds its packed weights, as `target.far_weights` says."""

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    directory: Path
    weights_in: str = NEAR
    _written: tuple[Future[None], ...] = field(default=(), repr=False, compare=False)

    @property
    def n_bytes(self) -> int:
        return sum(spec.nbytes for spec in (*self.inputs, *self.outputs))

    def wait(self) -> None:
        """Wait until all files are written; raise the error of writing them."""
        for part in self._written:
            part.result()


def make_problem(dag: ComputeDAG, directory: Path, seed: int) -> Problem:
    """Start writing the data sets of `dag`, drawn by `seed`, into the existing `directory`, and return at once.

    The reference runs in a thread (NumPy releases the interpreter's lock), so that candidates can be built meanwhile;
    with many cores each data set has a thread. They are daemons: a program that is told to end does not wait for them.
    """
    from autosched.te.reference.evaluate import evaluate
    from autosched.te.reference.inputs import make_inputs
    from autosched.te.rewrites.winograd import TILES

    inputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.inputs)
    outputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.outputs)

    def write(names: tuple[str, ...], written: Future[None]) -> None:
        try:
            for name in names:
                arrays = make_inputs(dag, seed, name)
                expected = [(r.value, r.bound) for r in evaluate(dag, arrays)]
                write_data_set(directory, name, inputs, outputs, arrays, expected)
                for tile in TILES if dag.winograd else ():
                    expected = [(r.value, r.bound) for r in evaluate(dag, arrays, tile)]
                    write_limits(directory, name, outputs, expected, tile)
        except OSError as error:
            refused = f"the reference cannot be written to {directory}: {error.strerror or error}"
            written.set_exception(UsageError(f"{refused}; make room there or set XDG_CACHE_HOME"))
        except BaseException as error:
            written.set_exception(error)
        else:
            written.set_result(None)

    parts = tuple((name,) for name in DATA_SETS) if usable_cores() >= MANY_CORES else (DATA_SETS,)
    futures = tuple(Future[None]() for _ in parts)
    for part in zip(parts, futures, strict=True):
        threading.Thread(target=write, args=part, name="autosched-reference", daemon=True).start()
    return Problem(inputs, outputs, directory, dag.weights_in, futures)


def write_data_set(
    directory: Path,
    name: str,
    inputs: tuple[ArraySpec, ...],
    outputs: tuple[ArraySpec, ...],
    arrays: Mapping[str, Array],
    expected: list[tuple[Array, Array]],
) -> None:
    """Write one data set; `expected` has (value, bound) for each output."""
    for i, spec in enumerate(inputs):
        array = np.ascontiguousarray(arrays[spec.name], dtype=spec.numpy_dtype)
        np.save(directory / f"{name}.in{i}.npy", storable(array.reshape(spec.shape)), allow_pickle=False)
    for j, (spec, (value, _)) in enumerate(zip(outputs, expected, strict=True)):
        np.save(directory / f"{name}.out{j}.value.npy", storable(value.reshape(spec.shape)), allow_pickle=False)
    write_limits(directory, name, outputs, expected)


def write_limits(
    directory: Path, name: str, outputs: tuple[ArraySpec, ...], expected: list[tuple[Array, Array]], tile: int = 0
) -> None:
    """Write the limits of (value, bound) for each output, for kernels with Winograd's tiles of `tile` outputs (0:
    none).
    """
    for j, (spec, (value, bound)) in enumerate(zip(outputs, expected, strict=True)):
        bound = np.broadcast_to(np.asarray(bound, np.float64), value.shape)
        low, high = limits(value, bound, spec.dtype)
        if (
            DTYPES[spec.dtype].is_float and not DTYPES[spec.dtype].has_infinity
        ):  # values that are too large become NaN in such types
            bound = np.where(np.isnan(low) != np.isnan(high), np.inf, bound)
        for part, array in (("bound", bound), ("low", low), ("high", high)):
            np.save(limit_file(directory, name, j, part, tile), storable(array.reshape(spec.shape)), allow_pickle=False)


def limit_file(directory: Path, name: str, j: int, part: str, tile: int) -> Path:
    """Return the path of a file of limits of output `j` of a data set."""
    return directory / f"{name}.out{j}.{part}{f'.{tile}' if tile else ''}.npy"


def storable(array: Array) -> Array:
    """`array` as a file can hold it: of a type that is not NumPy's own, the bits."""
    return array.view(f"u{array.dtype.itemsize}") if is_foreign(array.dtype) else array


def limits(value: Array, bound: Array, dtype: str) -> tuple[Array, Array]:
    """Return the least and the greatest numbers of `dtype` within `bound` of `value`, elementwise.

    Floats are rounded inwards. An interval that reaches beyond the dtype's range admits the infinity to which a correct
    kernel rounds, or has a limit that is NaN if the type has no infinity; an infinite value admits only itself; an
    expected NaN gives NaN limits. An infinite bound admits everything (also a NaN, which limits cannot express: see
    `check`).
    """
    kind = DTYPES[dtype].numpy_dtype
    if not DTYPES[dtype].is_float:
        return _integer_limits(value, bound, kind)
    from autosched.te.reference.parallel import for_each

    low, high = (np.empty(value.size, kind) for _ in range(2))
    flat, errors = value.reshape(-1), bound.reshape(-1)

    def compute(start: int) -> None:
        part = slice(start, start + _PART)
        low[part], high[part] = _float_limits(flat[part], errors[part], kind)

    for_each(compute, range(0, value.size, _PART))
    return low.reshape(value.shape), high.reshape(value.shape)


def _float_limits(value: Array, bound: Array, kind: np.dtype[Any]) -> tuple[Array, Array]:
    wide, row = value.astype(np.float64), DTYPES[kind.name]
    end = kind.type(-np.inf if row.has_infinity else -row.largest)
    with np.errstate(all="ignore"):
        below = np.where(np.isinf(bound), -np.inf, np.where(np.isinf(wide), wide, wide - bound))
        above = np.where(np.isinf(bound), np.inf, np.where(np.isinf(wide), wide, wide + bound))
        low, high = below.astype(kind), above.astype(kind)
        too_low, too_high = low.astype(np.float64) < below, high.astype(np.float64) > above
        low = np.where(too_low & np.isfinite(low), np.nextafter(low, -end), low)
        high = np.where(too_high & np.isfinite(high), np.nextafter(high, end), high)
    return low, high


def _integer_limits(value: Array, bound: Array, kind: np.dtype[Any]) -> tuple[Array, Array]:
    if not bound.any():
        exact = value.astype(kind)
        return exact, exact
    lowest, highest = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    wide = value.astype(np.uint64)  # modulo 2^64, in which all differences are right
    below, above = wide - np.array(lowest).astype(np.uint64), np.array(highest).astype(np.uint64) - wide
    slack = np.floor(np.minimum(bound, 2.0**62)).astype(np.uint64)
    low = wide - np.where(np.isinf(bound), below, np.minimum(below, slack))
    high = wide + np.where(np.isinf(bound), above, np.minimum(above, slack))
    return low.astype(kind), high.astype(kind)
