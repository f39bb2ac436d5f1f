"""Compiles a schedule's nest and runs it on arrays that end where memory that cannot be read begins."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from autosched.codegen.llvm.kernel import emit
from autosched.codegen.source import KernelSource
from autosched.ir.dtype import DTYPES
from autosched.ir.instructions.dots import INTRINSICS
from autosched.ir.stmt import For, ForKind, walk
from autosched.lower import concretise, lower
from autosched.runtime.jit import CODEGEN_LEVEL, load_object
from autosched.schedule import State, replay, steps_to_json
from autosched.target import Target, microarchitecture, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import Reference, evaluate, within
from autosched.te.reference.inputs import make_inputs
from search_spaces.space import Sketch
from tests.codegen.elsewhere import HOST, can_run, compile_here
from tests.helpers import check_nest

Array = npt.NDArray[Any]
PAGE = mmap.PAGESIZE
NAMED = ("haswell", "nehalem", "cooperlake")
POISON = {"f": np.nan, "b": True, "i": 85, "u": 85}


@cache
def targets() -> tuple[Target, ...]:
    """The host, and processors with AVX-512, without it, and without AVX and FMA, so far as this machine can run them.

    A host that is one of these itself is not joined by its like, which gets the same text (`test_schedules.py`)."""
    return tuple(map(parse_target, target_texts()))


@cache
def target_texts() -> tuple[str, ...]:
    """What `targets` are, in words."""
    kinds: dict[tuple[object, ...], str] = {}
    for text in ("cpu", *(f"llvm -mcpu={name}" for name in NAMED)):
        target = parse_target(text)
        if can_run(target):
            kinds.setdefault(kind_of(target), text)
    return tuple(kinds.values())


def targets_in_turn(row: int, column: int, columns: int) -> tuple[Target, ...]:
    """Those for one cell of a table of cases: every row meets all targets in its `columns`, and so do three rows of a
    column."""
    every = targets()
    share = -(-len(every) // columns)
    return tuple(every[(row + column * share + n) % len(every)] for n in range(share))


def kind_of(target: Target) -> tuple[object, ...]:
    """What code generation asks of a processor that runs here."""
    dots = {form.feature for row in INTRINSICS.values() for form in row.forms}
    features = tuple(target.has(name) for name in sorted({"f16c", "avx512bf16", "avx512vl", "avx2", *dots}))
    gathers = microarchitecture(target.mcpu).gather > 0
    return (target.arch, target.vector_bytes, target.n_vector_registers, target.has_fma, features, gathers)


@lru_cache(maxsize=16)
def machine_code(text: str, target: Target) -> bytes:
    """Compiled once for kernels whose number of threads or values of parameters make no difference to the text.

    The host's text as users have it. Of the other kinds' it is the text that is checked, not what LLVM makes of it: they
    are not optimised, which takes a third of the time. (The fuzzer optimises all that the machine runs as it is.)"""
    return compile_here(text, target, CODEGEN_LEVEL if target == HOST else 0)


def without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(";"))


class Guarded:
    """A copy of `array` between two pages that fault: reading or writing past either end of it kills the process.

    The end of the array touches the second page; before its start there may be up to a page of slack.
    """

    def __init__(self, array: Array) -> None:
        pages = -(-max(array.nbytes, 1) // PAGE)
        self._memory = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        offset = (pages + 1) * PAGE - array.nbytes
        self.array: Array = np.ndarray(array.shape, array.dtype, self._memory, offset)
        self.array[...] = array
        self.address = base + offset
        protect = ctypes.CDLL(None).mprotect
        for page in (base, base + (pages + 1) * PAGE):
            assert protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0


def build(state: State, target: Target, threads: int, values: Mapping[str, int] | None = None) -> KernelSource:
    """The kernel of a schedule."""
    func, simplify = concretise(lower(state), values or {})
    return emit(func, simplify, target, threads)


def run(source: KernelSource, dag: ComputeDAG, inputs: Mapping[str, Array], target: Target) -> list[Array]:
    """The outputs, in the shapes the caller sees. Weights are gone when the kernel itself runs."""
    code = machine_code(without_comments(source.ir), target)
    kernel = load_object(code, source.name, source.threads)
    given = [Guarded(inputs[t.name]) for t in dag.inputs]
    made = [Guarded(np.full(t.shape, POISON[DTYPES[t.dtype].kind], DTYPES[t.dtype].numpy_dtype)) for t in dag.outputs]
    workspace = Guarded(np.full(-(-max(source.workspace_bytes, 1) // 64) * 64, 255, np.uint8))
    packed = [Guarded(np.full(source.packed_bytes, 255, np.uint8))] if source.packed_bytes else []
    buffers = (*given, *made, *packed)
    pointers = (ctypes.c_void_p * len(buffers))(*(g.address for g in buffers))
    expected = {t.name: inputs[t.name] for t in dag.inputs}
    if source.prepare is not None:
        prepare = load_object(code, source.prepare, source.threads)
        assert prepare(ctypes.addressof(pointers), workspace.address) == 0
        workspace.array.fill(255)
        for guard, tensor in zip(given, dag.inputs, strict=True):
            np.testing.assert_array_equal(guard.array, inputs[tensor.name])
            if tensor.name in dag.weights:
                guard.array[...] = POISON[DTYPES[tensor.dtype].kind]
                expected[tensor.name] = guard.array.copy()
    assert kernel(ctypes.addressof(pointers), workspace.address) == 0
    for guard, tensor in zip(given, dag.inputs, strict=True):
        assert guard.array.tobytes() == expected[tensor.name].tobytes(), f"the input {tensor.name} was written"
    return [g.array.reshape(t.public_shape).copy() for g, t in zip(made, dag.outputs, strict=True)]


def check_outputs(dag: ComputeDAG, inputs: Mapping[str, Array], outputs: Sequence[Array], what: str) -> None:
    compare(dag, evaluate(dag, inputs), outputs, what)


def compare(dag: ComputeDAG, expected: Sequence[Reference], outputs: Sequence[Array], what: str) -> None:
    for tensor, got, reference in zip(dag.outputs, outputs, expected, strict=True):
        wrong = np.argwhere(~within(reference, got))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise AssertionError(
                f"{what}: {tensor.name}{list(at)} is {got[at]}, not {reference.value[at]} +- {reference.bound[at]}; "
                f"{len(wrong)} of {got.size} elements are wrong"
            )


def check_candidate(dag: ComputeDAG, sketch: Sketch, row: Mapping[str, int], inputs: Mapping[str, Array]) -> None:
    """A candidate computes the reference, interpreted, on the host and on one of the other targets, which the candidate
    chooses, so that several meet them all; its record says the same nest."""
    func, simplify = concretise(lower(sketch.state), row)
    check_nest(func, dag)
    assert concretise(lower(replay(dag, steps_to_json(sketch.state, row))), {})[0] == func
    expected = evaluate(dag, inputs)
    host, *others = targets()
    number = crc32(f"{dag.outputs[0].name} {sketch.name} {row}".encode())
    for target in (host, *others[number % max(1, len(others)) :][:1]):
        outputs = run(emit(func, simplify, target, 2), dag, inputs, target)
        compare(dag, expected, outputs, f"{sketch.name} {row} {target.mcpu}")


def check_kernel(
    dag: ComputeDAG,
    state: State,
    inputs: Mapping[str, Array] | None = None,
    threads: Sequence[int] = (1, 2),
    kind: str = "integers",
    on: Sequence[Target] | None = None,
) -> None:
    """The compiled schedule computes the reference on every target that this machine can run, or on those given.

    One that is not parallel has the same text for all `threads`, and runs with the first.
    """
    data = make_inputs(dag, 0, kind) if inputs is None else inputs
    expected = evaluate(dag, data)
    func, simplify = concretise(lower(state), {})
    counts = threads if any(isinstance(s, For) and s.kind is ForKind.PARALLEL for s in walk(func.body)) else threads[:1]
    for target in targets() if on is None else on:
        for count in counts:
            outputs = run(emit(func, simplify, target, count), dag, data, target)
            compare(dag, expected, outputs, f"{target.mcpu}, {count} threads")
