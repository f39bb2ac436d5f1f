"""The programs in Halide: with each of its autoschedulers, and by hand.

By hand, four families of schedules of which the fastest counts, and for some programs one of their own:

stored    each stage that is read at several places is computed as a whole, rows in parallel, columns in vectors
strips    strips of rows in parallel; such stages are computed for the next row of the output and keep the rows that
          later ones read (sliding windows)
pairs     as stored, but stages that one such stage reads alone in strips of its rows
coarse    as strips, but stages of at most half as many elements as the output (levels of a pyramid) as a whole

In each, tables are computed ahead, and stages that are read at one place only are inlined.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.pipelines.contest import Array
from experiments.pipelines.entries import AUTOSCHEDULERS
from experiments.pipelines.halide_maker import HalideImage, HalideMaker
from experiments.pipelines.makers import Shape
from experiments.pipelines.programs import PROGRAMS

DEEP = ("local_laplacian", "bilateral_grid", "interpolate", "lens_blur")  # for which strips take minutes to compile
PAIR = 16  # rows of a strip of a pair
STRIPS = (16, 32, 64, 128)  # rows of a strip
COARSE = 0.5  # of the elements of the output
TABLE = 4096  # elements of a table, at most
CHANNELS = 4  # that are innermost loops, unrolled
TASKS = 16  # rows in parallel of a histogram
Schedule = Callable[[Any, HalideMaker], None]


def load_autoschedulers() -> Any:
    """Halide's module, with the plugins of its autoschedulers. Raises ImportError where it is not installed."""
    import halide as hl

    warnings.filterwarnings("ignore", message="The floating-point value", category=RuntimeWarning)  # constants
    for name in AUTOSCHEDULERS:
        hl.load_plugin(str(Path(hl.__file__).parent / "lib64" / f"libautoschedule_{name.lower()}.so"))
    return hl


def automatic(
    hl: Any, scheduler: str, threads: int, name: str, size: tuple[int, int], arrays: Sequence[Array], out: Array
) -> Callable[[], object]:
    """The program with the schedule of an autoscheduler; a function that writes `out`."""
    maker, pipeline = _bound(hl, name, size, arrays, out)
    settings = {"parallelism": str(threads)}
    pipeline.apply_autoscheduler(hl.get_host_target(), hl.AutoschedulerParams(scheduler, settings))
    return _compiled(hl, maker, pipeline, out)


def by_hand(
    hl: Any, schedule: Schedule, name: str, size: tuple[int, int], arrays: Sequence[Array], out: Array
) -> Callable[[], object]:
    """The program with a schedule of `hand_schedules`; a function that writes `out`."""
    maker, pipeline = _bound(hl, name, size, arrays, out)
    schedule(hl, maker)
    return _compiled(hl, maker, pipeline, out)


def hand_schedules(name: str, rows: int) -> dict[str, Schedule]:
    """The schedules of a program of so many rows, by name."""
    if name in _OWN:
        return {"own": _OWN[name]}
    whole: dict[str, Schedule] = {"stored": _stored, "pairs": _pairs}
    if name in DEEP:
        return whole
    return {
        **whole,
        **{f"strips {n}": _strips(n, 0.0) for n in STRIPS if n <= rows},
        **{f"coarse {n}": _strips(n, COARSE) for n in STRIPS[1::2] if n <= rows},
    }


def _bound(hl: Any, name: str, size: tuple[int, int], arrays: Sequence[Array], out: Array) -> tuple[HalideMaker, Any]:
    """The program with the sizes and arrays of its inputs, and the size of its output, known."""
    maker = HalideMaker(hl)
    PROGRAMS[name](maker, *size)
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
        dim(n).set_stride(int(math.prod(shape[len(shape) - n :])))


def _compiled(hl: Any, maker: HalideMaker, pipeline: Any, out: Array) -> Callable[[], object]:
    pipeline.compile_jit(hl.get_host_target())
    buffer = hl.Buffer(out)
    kept = (maker, pipeline, out)  # Halide holds no references to them

    def run() -> object:
        return kept[1].realize(buffer)

    return run


def _lanes(hl: Any, image: HalideImage) -> int:
    """Elements of a vector."""
    return int(hl.get_host_target().natural_vector_size(image.func.types()[0]))


def _rows_and_columns(hl: Any, image: HalideImage, lanes: int) -> tuple[list[Any], Any, Any]:
    """The variables of the other dimensions, of rows and of columns; a last dimension shorter than a vector is
    another."""
    names = [hl.Var(f"d{n}") for n in range(len(image.shape))]
    first = len(names) - (3 if image.shape[-1] < lanes and len(names) > 2 else 2)
    return names[:first] + names[first + 2 :], names[first], names[first + 1]


def _store(hl: Any, image: HalideImage, inside: tuple[Any, Any, Any] | None = None, in_strips: bool = False) -> None:
    """Computes a stage as a whole, its rows in parallel, or `inside` of an output, its strip and its row."""
    lanes = _lanes(hl, image)
    if inside is None:
        image.func.compute_root()
    else:
        output, strip, row = inside
        image.func.store_at(output, strip).compute_at(output, row)
    for definition in (image.func, *(image.func.update(n) for n in range(image.updates))):
        if len(image.shape) < 2:
            continue
        _, y, x = _rows_and_columns(hl, image, lanes)
        _vectorize(hl, definition, x, image, lanes)
        if inside is None and (image.updates or not in_strips):
            definition.parallel(y)
    if image.inner is not None:
        image.inner.compute_root()


def _vectorize(hl: Any, definition: Any, column: Any, image: HalideImage, lanes: int) -> None:
    """Where a vector goes beyond the last column, elements are computed again, or left out in an image that is
    narrower; inputs are never read beyond their borders."""
    columns = image.shape[int(column.name().removeprefix("d"))]
    tail = hl.TailStrategy.ShiftInwards if columns >= lanes else hl.TailStrategy.GuardWithIf
    definition.vectorize(column, lanes, tail if definition is image.func else hl.TailStrategy.GuardWithIf)


def _is_stored(stage: HalideImage) -> bool:
    """Whether a stage is computed before its readers, and not in them."""
    several = len(stage.places) > 1 and math.prod(stage.shape[:-2]) <= CHANNELS
    return several or bool(stage.updates or stage.inner) or math.prod(stage.shape) <= TABLE


def _is_read_again(stage: HalideImage) -> bool:
    return len(stage.places) > 1 or _is_stored(stage)


def _stored(hl: Any, maker: HalideMaker) -> None:
    *inner, last = maker.stages
    for stage in inner:
        if _is_read_again(stage):
            _store(hl, stage)
    _store(hl, last)


def _is_pair(stage: HalideImage, readers: Sequence[HalideImage]) -> bool:
    """Whether one stage reads another alone, of as many rows or of half as many: no level of a pyramid."""
    is_plain = not stage.updates and stage.inner is None
    return is_plain and len(readers) == 1 and 2 * math.prod(stage.shape) >= math.prod(readers[0].shape)


def _pairs(hl: Any, maker: HalideMaker) -> None:
    *inner, last = maker.stages
    outer, row = hl.Var("outer"), hl.Var("row")
    homes = {last.name: {last.name}}  # of a stage: the stages in whose loops it is computed
    whole = {last.name: last}
    for stage in reversed(inner):
        readers = {home for reader in stage.readers for home in homes[reader]}
        if not _is_read_again(stage):
            homes[stage.name] = readers
        elif _is_pair(stage, [whole[reader] for reader in readers]):
            homes[stage.name] = readers
            (reader,) = readers
            _store(hl, stage, (whole[reader].func, outer, row))
        else:
            homes[stage.name] = {stage.name}
            whole[stage.name] = stage
            _store(hl, stage, in_strips=stage.inner is None)
    for stage in whole.values():
        if len(stage.shape) > 1 and not stage.updates and stage.inner is None:
            _, y, x = _rows_and_columns(hl, stage, _lanes(hl, stage))
            stage.func.split(y, outer, row, PAIR).parallel(outer)
            if stage is last:
                _vectorize(hl, stage.func, x, stage, _lanes(hl, stage))


def _strips(rows: int, coarse: float) -> Schedule:
    def schedule(hl: Any, maker: HalideMaker) -> None:
        *inner, last = maker.stages
        outer, row, lanes = hl.Var("outer"), hl.Var("row"), _lanes(hl, last)
        others, y, x = _rows_and_columns(hl, last, lanes)
        last.func.split(y, outer, row, rows)
        last.func.reorder(*others, x, row, outer).parallel(outer)
        _vectorize(hl, last.func, x, last, lanes)
        for other in others:
            last.func.unroll(other)
        most = coarse * math.prod(last.shape)
        whole = set[str]()  # stages that are computed as a whole, or in such
        for stage in reversed(inner):
            is_whole = bool(stage.updates or stage.inner) or math.prod(stage.shape) <= max(most, TABLE)
            if is_whole or not stage.readers.isdisjoint(whole):
                whole.add(stage.name)
            if _is_stored(stage) or is_whole:
                _store(hl, stage, None if stage.name in whole else (last.func, outer, row))

    return schedule


def _recursive(hl: Any, maker: HalideMaker) -> None:
    """Two passes along columns for a strip of columns, then two along rows for a strip of rows."""
    down, up, right, left = maker.stages
    outer, inner, lanes = hl.Var("outer"), hl.Var("inner"), _lanes(hl, up)
    for first, second, across, along in ((down, up, "d1", "d0"), (right, left, "d0", "d1")):
        across, along = hl.Var(across), hl.Var(along)
        second.func.compute_root().split(across, outer, inner, 2 * lanes).reorder(inner, along, outer)
        second.func.vectorize(inner, lanes).parallel(outer)
        for scan in (first.inner, second.inner):
            scan.compute_at(second.func, outer)
            scan.update(0).vectorize(across, lanes)
            scan.update(1).reorder(across, scan.rvars(1)[0]).vectorize(across, lanes)
    up.func.reorder_storage(hl.Var("d0"), hl.Var("d1"))


def _counted(hl: Any, maker: HalideMaker) -> None:
    """Parts of the rows counted in parallel, then added."""
    counts, upto, table, out = maker.stages
    rows = counts.func.rvars(0)[1]
    outer, inner, task = hl.RVar("outer"), hl.RVar("inner"), hl.Var("task")
    update = counts.func.compute_root().update(0)
    update.split(rows, outer, inner, -(-out.shape[0] // TASKS))
    update.rfactor(outer, task).compute_root().update(0).parallel(task)
    upto.inner.compute_root()
    table.func.compute_root()
    out.func.parallel(hl.Var("d0")).vectorize(hl.Var("d1"), _lanes(hl, out))


def _patches(hl: Any, maker: HalideMaker) -> None:
    """Tiles of the output, each with the sums along columns of all its patches."""
    _, down, _, out = maker.stages
    y, x, lanes = hl.Var("d0"), hl.Var("d1"), _lanes(hl, out)
    columns, rows, column, row = (hl.Var(name) for name in ("columns", "rows", "column", "row"))
    out.func.tile(x, y, columns, rows, column, row, 8 * lanes, 32).parallel(rows).vectorize(column, lanes)
    down.func.compute_at(out.func, columns).vectorize(hl.Var("d3"), lanes)


_OWN: dict[str, Schedule] = {"iir": _recursive, "equalise": _counted, "non_local_means": _patches}
