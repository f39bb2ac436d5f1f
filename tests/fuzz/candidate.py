"""One program, its data and its candidates: what is chosen, how one is built and checked in this process."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autosched.codegen import KernelSource, build_source
from autosched.codegen.llvm.compilation_units import emit_entries, emit_piece
from autosched.ir.interpreter.machine import InterpretError
from autosched.ir.stmt import Func
from autosched.ir.verify import verify
from autosched.lower import concretise, lower
from autosched.lower.code_splitting import pieces_of
from autosched.measure.buffers import GuardedBuffer
from autosched.measure.check import CandidateError, CheckedKernel, DataSet, Packing, check
from autosched.measure.gpu.data import GpuData, make_workspace
from autosched.measure.gpu.simulated import SimulatedData
from autosched.measure.problem import write_data_set
from autosched.runtime.gpu.opencl import OpenClDevice
from autosched.runtime.jit import load_objects
from autosched.runtime.spec import ArraySpec
from autosched.target import Target, parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.model import CostModel
from search_spaces import cpu, gpu
from search_spaces.space import Sketch, sample
from tests.codegen.elsewhere import compile_here
from tests.helpers import SAMPLED, check_nest, little_rows

DATA_SETS = ("normal", "structured", "integers")
SAMPLED_FOR_GPU = 1000  # to find a legal one
MAX_COPIES = 4096
# Of LLVM IR: some seconds of compiling. What the search finds legal has fewer, other rows up to 300,000.
MAX_LINES = 20_000
TOO_LARGE = re.compile(r"the nest of \S+ has \d+ [a-z ]+, more than the \d+ allowed")  # says lower.limits
MAX_INTERPRETED = 1500  # points of all stages; the interpreter does about a million a second


@dataclass(frozen=True)
class Candidate:
    """A row of a sketch for a target; an empty sketch name stands for the making of all sketches."""

    target: str
    threads: int
    sketch: str = ""
    values: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Candidate:
        values = tuple((str(n), int(v)) for n, v in data["values"])
        return cls(data["target"], data["threads"], data["sketch"], values)


class Fault(Exception):
    """What went wrong: the step it happened in (or a class of `measure.results.FAULTS`) and a sentence."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def signature(self) -> str:
        """Equal for what is most likely the same bug: the kind, and the words of an exception without its numbers."""
        return signature(self.kind, str(self))


def signature(kind: str, message: str) -> str:
    if ":" not in kind:  # a kernel ran and did wrong
        return kind
    return f"{kind} {re.sub(r'[^A-Za-z ]+', '', message)[:40]}"


@contextmanager
def step(name: str) -> Iterator[None]:
    """Any exception inside becomes a Fault of this step."""
    try:
        yield
    except (CandidateError, Fault):
        raise
    except Exception as error:
        raise Fault(f"{name}: {type(error).__name__}", " ".join(str(error).split())[:600] or repr(error)) from error


def is_gpu(target: str) -> bool:
    return parse_target(target).gpu is not None


@lru_cache(maxsize=8)
def _sketches(dag: ComputeDAG, target: str, threads: int) -> tuple[Sketch, ...]:
    with step("sketches"):
        if is_gpu(target):
            return gpu.sketches(collapse(dag.with_weights(())), parse_target(target))
        return cpu.sketches(collapse(dag), parse_target(target), threads)


@lru_cache(maxsize=64)
def _lowered(sketch: Sketch) -> Func:
    with step("lower"):
        return lower(sketch.state)


def all_sketches(dag: ComputeDAG, target: str, threads: int) -> tuple[Sketch, ...]:
    return _sketches(dag, target, threads)


def draw(sketch: Sketch, target: str, threads: int, rng: np.random.Generator) -> Candidate:
    """A random row of not too much code, else the one of the smallest tiles; for a GPU a random legal row.

    Raises Fault where no row is legal.
    """
    if is_gpu(target):
        return _draw_legal(sketch, target, threads, rng)
    (row,) = little_rows(sketch, 1, rng, MAX_COPIES)
    return Candidate(target, threads, sketch.name, tuple(row.items()))


def _draw_legal(sketch: Sketch, target: str, threads: int, rng: np.random.Generator) -> Candidate:
    rows = sample(sketch, SAMPLED_FOR_GPU, rng) if sketch.params else np.zeros((1, 0), np.int64)
    model = _model(sketch, target, threads)
    legal = model.legal_rows(0, rows)
    if not len(legal):
        broken = ", ".join(model.broken_rules(0, rows[0]))
        raise Fault("legal: none", f"no row of {len(rows)} is legal; the first breaks {broken}")
    values = tuple((p.name, int(v)) for p, v in zip(sketch.params, legal[0], strict=True))
    return Candidate(target, threads, sketch.name, values)


@lru_cache(maxsize=64)
def _model(sketch: Sketch, target: str, threads: int) -> CostModel:
    func = _lowered(sketch)
    with step("cost model"):
        return CostModel([func], [tuple(p.name for p in sketch.params)], parse_target(target), threads)


def check_model(sketch: Sketch, target: str, threads: int, rng: np.random.Generator) -> None:
    """The cost model takes the sketch: latencies are positive, features are finite. Raises Fault."""
    rows = sample(sketch, SAMPLED, rng)
    model = _model(sketch, target, threads)
    with step("cost model"):
        legal = model.legal(0, rows)
        if is_gpu(target):  # the others may have anything
            rows = rows[legal]
        seconds, features = model.analytic_latency(0, rows), model.features(0, rows)
        if not (np.isfinite(seconds).all() and (seconds > 0).all() and np.isfinite(features).all()):
            raise ValueError("a drafted latency or a feature is not a finite positive number")


class Subject:
    """A program with inputs and expected outputs in files below `directory`, ready to try candidates for `target`."""

    def __init__(self, dag: ComputeDAG, directory: Path, seed: int, target: str) -> None:
        self.dag = dag
        self._points = sum(math.prod(a.extent for a in (*op.axes, *op.reduce_axes)) for op in dag.stages)
        inputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.inputs)
        outputs = tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in dag.outputs)
        with step("reference"):
            for name in DATA_SETS:
                arrays = make_inputs(dag, seed, name)
                expected = [(r.value, r.bound) for r in evaluate(dag, arrays)]
                write_data_set(directory, name, inputs, outputs, arrays, expected)
            self._place: Processor | OpenCl | Simulator = _PLACES[parse_target(target).kind](directory, inputs, outputs)

    def sketch(self, candidate: Candidate) -> Sketch | None:
        """The sketch of that name, None when there is none now."""
        found = all_sketches(self.dag, candidate.target, candidate.threads)
        return next((s for s in found if s.name == candidate.sketch), None)

    def run(self, candidate: Candidate) -> None:
        """Builds and checks the candidate. Raises Fault."""
        sketch = self.sketch(candidate)
        if sketch is None:
            return
        values, func = dict(candidate.values), _lowered(sketch)
        if self._points <= MAX_INTERPRETED:
            with step("interpret"):
                concrete, _ = concretise(func, values)
                verify(concrete, concrete=True)
                try:
                    check_nest(concrete, collapse(self.dag))
                except InterpretError as error:  # kernels have a result, which is compared
                    if "by zero" not in str(error):
                        raise
        try:
            self._place.run(func, values, candidate)
        except CandidateError as error:
            raise Fault(error.fault, str(error)) from None
        except Fault as fault:
            if not (TOO_LARGE.search(str(fault)) and _is_illegal(sketch, candidate)):
                raise


def _is_illegal(sketch: Sketch, candidate: Candidate) -> bool:
    """Whether the search would not take the candidate: lowering may refuse its nest then."""
    row = np.array([[value for _, value in candidate.values]], np.int64)
    return not _model(sketch, candidate.target, candidate.threads).legal(0, row).all()


def in_pieces(func: Func, values: dict[str, int], target: Target, threads: int) -> tuple[KernelSource, list[str]]:
    """The entry points of a kernel, and the texts of all its modules."""
    concrete, pieces = pieces_of(func, values)
    made, texts = [], []
    for n, whole in enumerate(pieces):
        piece, emitted = whole, emit_piece(whole, f"piece{n}.", target)
        if emitted is None:
            assert whole.exact is not None
            piece, emitted = whole.exact, emit_piece(whole.exact, f"piece{n}.", target)
        assert emitted is not None
        made.append((piece, emitted[1]))
        texts.append(emitted[0])
    entries = emit_entries(concrete, made, target, threads)
    return entries, [entries.ir, *texts]


class Processor:
    """Runs candidates in this process."""

    def __init__(self, directory: Path, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]) -> None:
        self._data = [DataSet(directory, name, inputs, outputs) for name in DATA_SETS]

    def run(self, func: Func, values: dict[str, int], candidate: Candidate) -> None:
        target = parse_target(candidate.target)
        with step("build"):
            source = build_source(func, values, target, candidate.threads)
            assert isinstance(source, KernelSource)
        if source.ir.count("\n") > MAX_LINES:
            return
        texts = [source.ir]
        if zlib.crc32(repr(candidate).encode()) % 2:  # as kernels of networks are made
            with step("pieces"):
                source, texts = in_pieces(func, values, target, candidate.threads)
        with step("compile"):
            codes = [compile_here(text, target) for text in texts]
            names = (source.name,) if source.prepare is None else (source.name, source.prepare)
            found = load_objects(codes, names, source.threads)
            loaded, prepare = found[source.name], None if source.prepare is None else found[source.prepare]
        packing = None if prepare is None else Packing(prepare.function, GuardedBuffer(source.packed_bytes))
        check(
            CheckedKernel(loaded.function, source.threads, GuardedBuffer(max(source.workspace_bytes, 1)), packing),
            self._data,
        )


class OpenCl:
    """Runs candidates on the OpenCL device, in guarded and poisoned buffers, with those of the measurer's data sets."""

    def __init__(self, directory: Path, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]) -> None:
        self._data = GpuData(_device(), directory, inputs, outputs)

    def run(self, func: Func, values: dict[str, int], candidate: Candidate) -> None:
        device = _device()
        with step("build"):
            source = build_source(func, values, parse_target("opencl"))
        with step("compile"):
            kernels = device.load(device.compile(source), source)
        for number in range(len(self._data.sets)):
            workspace = make_workspace(device, source)
            memory = {name: guarded.memory for name, guarded in workspace.items()}
            self._data.poison_outputs()
            with step("launch"):
                device.run(device.prepare(kernels, source, self._data.buffers(source, number, memory)))
                device.synchronise()
            self._data.examine(number, workspace)


class Simulator:
    """Runs candidates as CUDA C on the processor."""

    def __init__(self, directory: Path, inputs: tuple[ArraySpec, ...], outputs: tuple[ArraySpec, ...]) -> None:
        self._data = SimulatedData(directory, inputs, outputs)

    def run(self, func: Func, values: dict[str, int], candidate: Candidate) -> None:
        with step("build"):
            source = build_source(func, values, parse_target(candidate.target))
        with step("simulate"):
            self._data.check(source)


_PLACES: dict[str, type[Processor] | type[OpenCl] | type[Simulator]] = {
    "cpu": Processor,
    "opencl": OpenCl,
    "cuda": Simulator,
}


@lru_cache(maxsize=1)
def _device() -> OpenClDevice:
    """Opened in the process that uses it: a driver has threads, which do not survive a fork."""
    return OpenClDevice()
