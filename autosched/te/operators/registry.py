"""The built-in workloads: one table of names, functions, arguments, defaults and benchmark shapes.

The first fourteen are the operator set of the auto-scheduling literature (Ansor, OSDI 2020, section 7.1);
their arguments are positional, in the order of the shape tuples.

Small floats (float16, bfloat16) are computed in float32 and rounded once, at the end; with out_dtype=float32 they are
not rounded.
Products of int8 and uint8 are int32. w_dtype is another type for the second operand of matmul, dense and conv2d.
"""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.te.dag import ComputeDAG
from autosched.te.operators import attention, conv, elementwise, gemm, normalise, pool
from autosched.te.operators.transposed import t2d
from autosched.te.operators.window import stored
from autosched.te.operators.winograd import winograd
from autosched.te.tensor import Tensor

FLOATS = tuple(sorted((d for d, row in DTYPES.items() if row.is_float), key=lambda d: DTYPES[d].is_stored_only))
NUMBERS = (*FLOATS, *(d for d, row in DTYPES.items() if row.is_integer))
EVERYTHING = (*NUMBERS, "bool")
_SHARES = tuple(d for d in FLOATS if DTYPES[d].bits > 8)  # a softmax is rounded to them and goes on

_LEAST = {"pad": 0, "count_include_pad": 0, "keys": 0, "causal": 0}  # every other argument is at least 1
_MOST = {"count_include_pad": 1, "causal": 1}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class BuiltinWorkload:
    """A named operator.

    `args` are its arguments in the order of a shape tuple, which gives at least the first `required` of
    them (words, such as a layout, are never in a shape tuple). `defaults` go with `args`.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    args: tuple[str, ...]
    defaults: tuple[int | str, ...]
    dtypes: tuple[str, ...]
    summary: str
    shapes: tuple[Shape, ...] = ()
    required: int = 0

    @property
    def numbers(self) -> tuple[str, ...]:
        """The arguments that are numbers."""
        return tuple(a for a, d in zip(self.args, self.defaults, strict=True) if isinstance(d, int))


# Sizes of a small instance, by the names of arguments; hardly one divides by what tiles like.
SMALL = {
    "B": 2, "C": 5, "CI": 4, "CO": 6, "D": 5, "H": 7, "K": 7, "L": 9, "M": 5, "N": 3, "W": 6,
    "causal": 1, "dim": 3, "heads": 2, "k": 2, "keys": 5, "pad": 1, "queries": 4, "seq": 4,
}  # fmt: skip


def small_numbers(workload: BuiltinWorkload) -> dict[str, int]:
    """The numbers of an instance that is computed at once, for checks of every operator: those of `SMALL`, 3 for a
    size of another name that has no default, and the defaults of the others."""
    given = zip(workload.args, workload.defaults, strict=True)
    return {a: SMALL.get(a, default or 3) for a, default in given if isinstance(default, int)}


def _arguments(function: Callable[..., Tensor]) -> dict[str, int | str]:
    """The names of a function's numbers and words, all but its dtypes, with their defaults, 0 where it has none."""
    given = inspect.signature(function).parameters.values()
    names = [p for p in given if not p.name.endswith("dtype") and not isinstance(p.default, float)]
    return {p.name: 0 if p.default is p.empty else p.default for p in names}


def _benchmark(
    name: str, function: Callable[..., Tensor], dtypes: tuple[str, ...], summary: str, default: int,
    shapes: tuple[Shape, ...],
) -> BuiltinWorkload:  # fmt: skip
    """A workload of the literature; `default` is the number of the shape it has by itself."""
    args = tuple(_arguments(function))
    return BuiltinWorkload(name, function, args, shapes[default], dtypes, summary, shapes, len(args))


def _named(function: Callable[..., Tensor], dtypes: tuple[str, ...], summary: str, required: int) -> BuiltinWorkload:
    args = _arguments(function)
    return BuiltinWorkload(
        function.__name__, function, tuple(args), tuple(args.values()), dtypes, summary, (), required
    )


_BENCHMARKS = (
    _benchmark(
        "c1d", conv.c1d, NUMBERS, "convolution, 1 dimension: X[N,L,CI] * W[k,CI,CO]", 2,
        ((1, 256, 64, 128, 3, 2, 1), (1, 128, 128, 256, 1, 2, 0), (1, 64, 256, 256, 5, 1, 2),
         (1, 32, 512, 512, 3, 1, 1)),
    ),
    _benchmark(
        "c2d", conv.c2d, NUMBERS, "convolution, 2 dimensions: X[N,H,W,CI] * W[k,k,CI,CO]", 2,
        ((1, 224, 224, 3, 64, 7, 2, 3), (1, 56, 56, 64, 64, 1, 1, 0), (1, 14, 14, 256, 256, 3, 1, 1),
         (1, 7, 7, 512, 512, 3, 1, 1)),
    ),
    _benchmark(
        "c3d", conv.c3d, NUMBERS, "convolution, 3 dimensions: X[N,D,H,W,CI] * W[k,k,k,CI,CO]", 2,
        ((1, 16, 224, 224, 3, 64, 7, 2, 3), (1, 16, 56, 56, 64, 64, 1, 1, 0), (1, 16, 14, 14, 256, 256, 3, 1, 1),
         (1, 16, 7, 7, 512, 512, 3, 1, 1)),
    ),
    _benchmark(
        "gmm", gemm.gmm, NUMBERS, "matrix product: X[B,N,K] * Y[B,K,M]", 2,
        ((1, 128, 128, 128), (1, 512, 32, 512), (1, 512, 512, 512), (1, 1024, 1024, 1024)),
    ),
    _benchmark(
        "grp", conv.grp, NUMBERS, "grouped convolution: X[N,H,W,CI] * W[k,k,CI/groups,CO]", 2,
        ((1, 56, 56, 64, 128, 3, 2, 1, 1, 4), (1, 56, 56, 64, 64, 1, 1, 0, 1, 4), (1, 14, 14, 256, 256, 3, 1, 1, 1, 4),
         (1, 7, 7, 512, 512, 3, 1, 1, 1, 4)),
    ),
    _benchmark(
        "dil", conv.dil, NUMBERS, "dilated convolution, layout as c2d", 2,
        ((1, 224, 224, 3, 64, 7, 2, 3, 2), (1, 56, 56, 64, 64, 1, 1, 0, 2), (1, 14, 14, 256, 256, 3, 1, 1, 2),
         (1, 7, 7, 512, 512, 3, 1, 1, 2)),
    ),
    _benchmark(
        "dep", conv.dep, NUMBERS, "depthwise convolution: X[N,H,W,C] * W[k,k,C]", 0,
        ((1, 112, 112, 32, 3, 1, 1), (1, 112, 112, 64, 3, 2, 1), (1, 14, 14, 512, 3, 2, 1), (1, 7, 7, 1024, 3, 1, 1)),
    ),
    _benchmark(
        "t2d", t2d, NUMBERS, "transposed convolution: X[N,H,W,CI] * W[k,k,CI,CO]", 1,
        ((1, 4, 4, 512, 256, 4, 2, 1), (1, 8, 8, 256, 128, 4, 2, 1), (1, 16, 16, 128, 64, 4, 2, 1),
         (1, 32, 32, 64, 3, 4, 2, 1)),
    ),
    _benchmark(
        "cap", conv.cap, NUMBERS, "capsule convolution, 4x4 matrices: X[N,H,W,4,4,CI] * W[k,k,4,4,CI,CO]", 0,
        ((1, 16, 16, 32, 32, 3, 2, 1), (1, 8, 8, 32, 32, 3, 1, 1), (1, 16, 16, 8, 16, 3, 2, 1),
         (1, 8, 8, 16, 16, 3, 1, 1)),
    ),
    _benchmark(
        "nrm", normalise.nrm, FLOATS, "matrix 2-norm: Y[b] = sqrt(sum A[b,m,n]^2)", 2,
        ((1, 256, 256), (1, 512, 512), (1, 1024, 1024), (1, 4096, 1024)),
    ),
    _benchmark(
        "sfm", normalise.softmax, FLOATS, "softmax over the last axis of A[M,N]", 2,
        ((256, 256), (512, 512), (1024, 1024), (2048, 2048)),
    ),
    _benchmark(
        "cbr", conv.cbr, FLOATS, "c2d, bias, batch norm, relu", 3,
        ((1, 224, 224, 3, 64, 7, 2, 3), (1, 56, 56, 64, 128, 3, 2, 1), (1, 28, 28, 128, 256, 1, 2, 0),
         (1, 7, 7, 512, 512, 3, 1, 1)),
    ),
    _benchmark(
        "tbg", gemm.tbg, NUMBERS, "attention scores Q K^T: Q, K [N,seq,heads,dim]", 0,
        ((1, 128, 12, 64), (1, 128, 16, 64), (1, 64, 12, 128), (1, 128, 12, 128)),
    ),
    _benchmark(
        "tbs", gemm.tbs, FLOATS, "tbg and softmax over the last axis", 0,
        ((1, 128, 12, 64), (1, 128, 16, 64), (1, 64, 12, 128), (1, 128, 12, 128)),
    ),
)  # fmt: skip

_OTHERS = (
    _named(gemm.matmul, NUMBERS, "A[M,K] * B[K,N]", 3),
    _named(gemm.batch_matmul, NUMBERS, "X[B,M,K] * Y[B,K,N]", 4),
    _named(gemm.dense, NUMBERS, "X[M,K] * W[K,N] + bias[N]", 3),
    _named(attention.attention, _SHARES, "softmax(Q K^T / sqrt(dim)) V: Q [N,heads,queries,dim]; 0 keys: as many", 4),
    _named(conv.conv2d, NUMBERS, "convolution in NHWC (W[k,k,CI/groups,CO]) or NCHW (W[CO,CI/groups,k,k])", 8),
    _named(conv.depthwise, NUMBERS, "depthwise convolution in NHWC (W[k,k,C]) or NCHW (W[C,k,k])", 7),
    _named(winograd, FLOATS, "3x3 convolution by Winograd's F(m x m, 3 x 3), m = 2 or 4", 6),
    _named(pool.max_pool2d, NUMBERS, "maximum of k x k windows", 7),
    _named(pool.avg_pool2d, FLOATS, "mean of k x k windows", 7),
    _named(pool.global_max_pool2d, NUMBERS, "maximum of each channel", 4),
    _named(pool.global_avg_pool2d, FLOATS, "mean of each channel", 4),
    _named(normalise.softmax, FLOATS, "softmax over the last axis of A[M,N]", 2),
    _named(normalise.layer_norm, FLOATS, "layer normalisation of X[M,N] with gamma and beta", 2),
    _named(normalise.rms_norm, FLOATS, "RMS normalisation of X[M,N] with gamma", 2),
    _named(normalise.batch_norm, FLOATS, "batch normalisation, inference", 4),
    _named(elementwise.relu, NUMBERS, "max(X, 0)", 2),
    _named(elementwise.gelu, FLOATS, "X/2 (1 + erf(X / sqrt 2))", 2),
    _named(elementwise.add, NUMBERS, "A + B", 2),
    _named(elementwise.elementwise, NUMBERS, "relu(X * scale[N] + shift[N]) + R, a chain", 2),
    _named(elementwise.transpose, EVERYTHING, "X[M,N] -> [N,M]", 2),
)

WORKLOADS: dict[str, BuiltinWorkload] = {w.name: w for w in (*_BENCHMARKS, *_OTHERS)}


def build(
    name: str,
    shape: Sequence[int] | None = None,
    settings: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    dtype: str | None = None,
) -> tuple[ComputeDAG, dict[str, Any]]:
    """The DAG of a workload and its canonical description {"name", "args", "dtype"}.

    `shape` gives the leading numbers of the workload's arguments, `settings` (K=V) any of them by name and `dtype`;
    `batch` replaces the first argument, or multiplies it where that is M. A name `path/to/file.py:function` is
    the user's own operator (see `workload_file`), which takes settings only. Raises UsageError with one sentence.
    """
    if ".py:" in name or name.endswith(".py"):
        return _from_file(name, shape, settings, batch, dtype)
    workload = find(name)
    values: dict[str, int | str] = dict(zip(workload.args, workload.defaults, strict=True))
    if shape is not None:
        values.update(zip(workload.numbers, _checked_shape(workload, shape), strict=False))
    chosen = dict(settings or {})
    wanted = str(chosen.pop("dtype", dtype or "float32"))
    types: dict[str, str] = {key: str(chosen.pop(key)) for key in ("w_dtype", "out_dtype") if key in chosen}
    for key, value in chosen.items():
        values[_argument(workload, key)] = value
    args = {key: _value(workload, key, value) for key, value in values.items()}
    if batch is not None:
        _apply_batch(workload, args, batch)
    _check_dtype(name, "dtype", wanted, workload.dtypes)
    dag = ComputeDAG(_outputs(workload, args, wanted, types))
    return dag, {"name": name, "args": {**args, **types}, "dtype": wanted}


def outputs_of(name: str, args: Mapping[str, Any], dtype: str) -> Tensor | tuple[Tensor, ...]:
    """Return the tensors of a built-in workload with the arguments of its description, of which integers may be sizes.

    Raises UsageError for a function of the user's own.
    """
    workload = find(name)
    types = {key: str(args[key]) for key in ("w_dtype", "out_dtype") if key in args}
    return _outputs(workload, {key: args[key] for key in workload.args if key in args}, dtype, types)


def _outputs(
    workload: BuiltinWorkload, args: Mapping[str, int | str], dtype: str, types: Mapping[str, str]
) -> Tensor | tuple[Tensor, ...]:
    """The operator's tensors; `types` are w_dtype and out_dtype where they are given."""
    weights = {key: value for key, value in types.items() if key == "w_dtype"}
    if weights:
        if "w_dtype" not in inspect.signature(workload.function).parameters:
            raise UsageError(f"{workload.name} has no argument 'w_dtype'; its operands are of one type")
        _check_dtype(workload.name, "w_dtype", weights["w_dtype"], workload.dtypes)
    computed = DTYPES[dtype].computes_in
    if "out_dtype" in types:
        accepted = tuple(dict.fromkeys((dtype, computed)))
        _check_dtype(workload.name, f"out_dtype for {dtype}", types["out_dtype"], accepted)
    result = workload.function(*args.values(), dtype=dtype, **weights)
    if types.get("out_dtype", dtype) == computed:
        return result
    return tuple(stored(t, dtype) for t in result) if isinstance(result, tuple) else stored(result, dtype)


def _check_dtype(name: str, what: str, dtype: str, accepted: Sequence[str]) -> None:
    if dtype not in accepted:
        raise UsageError(f"{name}: {what} must be one of {', '.join(accepted)} but is {dtype!r}")


def resolve(spec: Mapping[str, Any]) -> ComputeDAG:
    """The DAG of a canonical description of a built-in workload, as a record database holds it.

    A user's file is refused: a database may come from elsewhere and must not make code run.
    """
    name = str(spec["name"])
    if name not in WORKLOADS:
        raise UsageError(
            f"the record's workload is {name!r}, which is not built in; pass the file and function yourself"
        )
    return build(name, settings={**spec["args"], "dtype": spec["dtype"]})[0]


def find(name: str) -> BuiltinWorkload:
    """The workload called `name`."""
    workload = WORKLOADS.get(name)
    if workload is None and ".py:" in name:
        raise UsageError(f"{name!r} is a function of your own, and this takes built-in workloads only")
    if workload is None:
        near = _nearest(name, WORKLOADS)
        hint = f"did you mean {near}?" if near else f"choose one of {', '.join(WORKLOADS)} or path/to/file.py:function"
        raise UsageError(f"there is no workload {name!r}; {hint}")
    return workload


def _nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The known words most like `word`, joined by "or"; empty when none is near."""
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    matches = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.55)
    return " or ".join(by_lower[m] for m in matches)


def _checked_shape(workload: BuiltinWorkload, shape: Any) -> tuple[int, ...]:
    numbers = workload.numbers
    try:
        given = tuple(shape)
    except TypeError:
        given = (shape,)
    if not workload.required <= len(given) <= len(numbers):
        least, most = workload.required, len(numbers)
        count = str(least) if least == most else f"{least} to {most}"
        example = ",".join(map(str, workload.defaults[:least]))
        raise UsageError(
            f"{workload.name}: the shape needs {count} numbers ({','.join(numbers)}) but has {len(given)} "
            f"({','.join(map(str, given))}); for example {example}"
        )
    return given


def _argument(workload: BuiltinWorkload, key: str) -> str:
    if key in workload.args:
        return key
    near = _nearest(key, (*workload.args, "dtype"))
    hint = f"did you mean {near}?" if near else f"its arguments are {', '.join((*workload.args, 'dtype'))}"
    raise UsageError(f"{workload.name} has no argument {key!r}; {hint}")


def _value(workload: BuiltinWorkload, key: str, value: int | str) -> int | str:
    """`value` as the type of the argument's default, within its range."""
    if key not in workload.numbers:
        return str(value)
    least, most = _LEAST.get(key, 1), _MOST.get(key)
    number = _whole(value)
    if number is None or number < least or (most is not None and number > most):
        span = f"an integer >= {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{workload.name}: {key} must be {span} but is {str(value)[:60]}")
    return number


def _whole(value: object) -> int | None:
    """The integer that `value` is or says; None for any other, also for one with a fraction."""
    try:
        return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _apply_batch(workload: BuiltinWorkload, args: dict[str, int | str], batch: int) -> None:
    first, number = workload.args[0], _whole(batch)
    if number is None or number < 1:
        raise UsageError(f"{workload.name}: the batch must be an integer >= 1 but is {batch}")
    args[first] = int(args[first]) * number if first == "M" else number


def _from_file(
    name: str, shape: Sequence[int] | None, settings: Mapping[str, str | int] | None, batch: int | None,
    dtype: str | None,
) -> tuple[ComputeDAG, dict[str, Any]]:  # fmt: skip
    from autosched.te import workload_file

    if shape is not None or batch is not None:
        word = "shape" if shape is not None else "batch"
        raise UsageError(f"{name}: a function of your own takes no {word}; set its arguments by name, K=V")
    return workload_file.load(name, {**(settings or {}), **({"dtype": dtype} if dtype else {})})
