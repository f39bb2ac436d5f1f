"""The programs in Halide: with each of its autoschedulers, and with sliding windows by hand.

By hand: strips of rows in parallel; each stage that is read at several places is computed for the next row of the
output and keeps the rows that later ones read; the others are inlined. Indices of an image are innermost last here, and
innermost first in Halide.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.pipelines.makers import Image, Shape, Value
from experiments.pipelines.programs import Program

AUTOSCHEDULERS = {"Mullapudi2016": "mullapudi2016", "Adams2019": "adams2019", "Li2018": "li2018"}
STRIPS = (16, 32, 64, 128)  # rows of a strip of the schedule by hand, the fastest of which counts
ALIGNMENT = 64  # bytes of images in memory


@dataclass
class HalideImage:
    """A Func or an ImageParam, read by indices in NumPy's order. `places`: where it is read."""

    func: Any
    shape: Shape
    places: set[str] = field(default_factory=set)

    def __getitem__(self, indices: Any) -> Any:
        self.places.add(str(indices))
        return self.func[tuple(reversed(indices))]


@dataclass
class HalideMaker:
    """Makes Funcs. `inputs` in order; `stages` in order, producers first."""

    hl: Any
    inputs: list[HalideImage] = field(default_factory=list)
    stages: list[HalideImage] = field(default_factory=list)

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> Image:
        kind = {"float32": self.hl.Float(32), "int32": self.hl.Int(32)}[dtype]
        self.inputs.append(HalideImage(self.hl.ImageParam(kind, len(shape), name), shape))
        return self.inputs[-1]

    def stage(self, name: str, shape: Shape, value: Value) -> Image:
        variables = [self.hl.Var(f"v{n}") for n in range(len(shape))]
        func = self.hl.Func(name)
        func[tuple(reversed(variables))] = value(*variables)
        self.stages.append(HalideImage(func, shape))
        return self.stages[-1]

    def edge(self, image: Image) -> Image:
        assert isinstance(image, HalideImage)
        h, w = image.shape[-2:]
        bounds = [(0, w), (0, h)]
        clamped = self.hl.BoundaryConditions.repeat_edge(image.func, bounds)
        return HalideImage(clamped, image.shape, image.places)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.hl.max(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.hl.min(a, b)

    def sqrt(self, a: Any) -> Any:
        return self.hl.sqrt(a)

    def exp(self, a: Any) -> Any:
        return self.hl.fast_exp(a)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return self.hl.select(condition, a, b)

    def is_even(self, i: Any) -> Any:
        return (i % 2) == 0

    def as_float(self, a: Any) -> Any:
        return self.hl.f32(a)

    def as_byte(self, a: Any) -> Any:
        return self.hl.u8(self.hl.floor(a + self.hl.f32(0.5)))


def aligned(shape: Shape, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array without values that begins at a multiple of ALIGNMENT."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def load_autoschedulers() -> Any:
    """Halide's module, with the plugins of its autoschedulers. Raises ImportError where it is not installed."""
    import halide as hl

    warnings.filterwarnings("ignore", message="The floating-point value", category=RuntimeWarning)  # constants
    for plugin in AUTOSCHEDULERS.values():
        hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / f"libautoschedule_{plugin}.so"))
    return hl


def automatic(
    hl: Any, scheduler: str, threads: int, program: Program, size: tuple[int, int],
    arrays: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any],
) -> Callable[[], object]:  # fmt: skip
    """The program with the schedule of an autoscheduler; a function that writes `out`."""
    maker, pipeline = _bound(hl, program, size, arrays, out)
    settings = {"parallelism": str(threads)}
    pipeline.apply_autoscheduler(hl.get_host_target(), hl.AutoschedulerParams(scheduler, settings))
    return _compiled(hl, maker, pipeline, out)


def by_hand(
    hl: Any, rows: int, program: Program, size: tuple[int, int], arrays: Sequence[npt.NDArray[Any]],
    out: npt.NDArray[Any],
) -> Callable[[], object]:  # fmt: skip
    """The program in strips of `rows` rows with sliding windows; a function that writes `out`."""
    maker, pipeline = _bound(hl, program, size, arrays, out)
    *inner, last = maker.stages
    outer, row = hl.Var("outer"), hl.Var("row")
    lanes = hl.get_host_target().natural_vector_size(hl.Float(32))
    names = [hl.Var(f"v{n}") for n in range(len(last.shape))]
    channels_last = last.shape[-1] < lanes
    y, x = names[-3:-1] if channels_last else names[-2:]
    last.func.split(y, outer, row, rows)
    others = [v for v in names if str(v.name()) not in (str(y.name()), str(x.name()))]
    last.func.reorder(*others, x, row, outer).vectorize(x, lanes).parallel(outer)
    for other in others:
        last.func.unroll(other)
    for stage in inner:
        if len(stage.places) > 1 and len(stage.shape) == 2:
            stage.func.store_at(last.func, outer).compute_at(last.func, row).vectorize(hl.Var("v1"), lanes)
    return _compiled(hl, maker, pipeline, out)


def _bound(
    hl: Any, program: Program, size: tuple[int, int], arrays: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any]
) -> tuple[HalideMaker, Any]:
    """The program with the sizes and arrays of its inputs, and the size of its output, known."""
    maker = HalideMaker(hl)
    program(maker, *size)
    for given, array in zip(maker.inputs, arrays, strict=True):
        _fix(given.func, array.shape, given.func.dim)
        given.func.set(hl.Buffer(array))
    last = maker.stages[-1].func
    _fix(last, out.shape, last.output_buffer().dim)
    return maker, hl.Pipeline([last])


def _fix(func: Any, shape: Shape, dim: Callable[[int], Any]) -> None:
    for n, extent in enumerate(reversed(shape)):
        dim(n).set_bounds(0, extent)
        dim(n).set_estimate(0, extent)
        dim(n).set_stride(int(np.prod(shape[len(shape) - n :])))


def _compiled(hl: Any, maker: HalideMaker, pipeline: Any, out: npt.NDArray[Any]) -> Callable[[], object]:
    pipeline.compile_jit(hl.get_host_target())
    buffer = hl.Buffer(out)
    kept = (maker, pipeline, out)  # Halide holds no references to them

    def run() -> object:
        return kept[1].realize(buffer)

    return run
