"""ONNX models that Python packages ship, against ONNX Runtime: all outputs, several shapes, numbers of threads.

    pip download --no-deps silero-vad rapidocr-onnxruntime magika basic-pitch -d wheels
    for wheel in wheels/*.whl; do python -m zipfile -e $wheel models; done
    python -m experiments.shipped_models models
    python -m experiments.shipped_models my.onnx --shape x=1,3,48,320 --fix sr=16000

For the files of these four packages the shapes of inputs, and inputs that are the same at every call, are in a table.
For others symbolic sizes are 1 in front and 64 elsewhere, where `--shape` does not say it. Each trial has a deadline
and a process that may die: loaded once, called some times with fresh inputs, half of them with guard bytes around the
arrays of `out=`. Nothing is timed. The exit code is 1 where something is not right.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from autosched.cli import options
from autosched.errors import AutoschedError, UsageError
from autosched.graph.onnx import read_onnx
from experiments.differential.children import Facts, Report, run_in_children
from experiments.differential.trial import drawn, try_model
from experiments.hostinfo import host_facts, package_versions

TOLERANCE = 1e-4  # of 1 + |element|
LIMIT_S = 600.0  # for a trial
N_CALLS = 10
FRONT, ELSEWHERE = 1, 64  # sizes that nobody has given
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Setting:
    """The shapes of inputs that have symbolic sizes, and the values of inputs that are the same at every call."""

    shapes: Shapes = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items()]
        return " ".join((*sizes, *(f"{name}={value}" for name, value in self.fixed.items())))


def _speech(*rates: int) -> tuple[Setting, ...]:
    """Windows of speech with the samples before them, 36 ms in all."""
    return tuple(
        Setting({"input": (batch, rate * 36 // 1000), "state": (2, batch, 128)}, {"sr": rate})
        for rate in rates
        for batch in (1, 2)
    )


SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "silero_vad.onnx": _speech(16000, 8000),
    "silero_vad_op18_ifless.onnx": _speech(16000, 8000),
    "silero_vad_16k_op15.onnx": _speech(16000),
    "silero_vad_half.onnx": tuple(Setting({"input": (n, 576), "state": (2, n, 128)}) for n in (1, 2)),
    "silero_vad_16k_sequence.onnx": tuple(Setting({"input": (n, 576)}) for n in (1, 3)),
    "ch_PP-OCRv4_det_infer.onnx": tuple(Setting({"x": (1, 3, *size)}) for size in ((160, 160), (64, 96))),
    "ch_PP-OCRv4_rec_infer.onnx": tuple(Setting({"x": shape}) for shape in ((1, 3, 48, 320), (2, 3, 48, 96))),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": tuple(Setting({"x": (n, 3, 48, 192)}) for n in (1, 6)),
    "model.onnx": (Setting({"bytes": (1, 2048)}), Setting({"bytes": (3, 2048)})),
    "nmp.onnx": (Setting({"serving_default_input_2:0": (1, 43844, 1)}),),
}


@dataclass(frozen=True)
class ModelTrial:
    """A file in one setting, on so many threads."""

    path: Path
    setting: Setting
    threads: int
    n_calls: int

    def __str__(self) -> str:
        words = f" {self.setting}" if str(self.setting) else ""
        return f"{self.path.name}{words}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def run(self, report: Report) -> Facts:
        """The verdict of the child."""
        import autosched as at

        report("load")
        file = read_onnx(self.path)
        fixed = {name: np.asarray(value, self._dtype(file.model, name)) for name, value in self.setting.fixed.items()}
        sizes = {
            name: self._size(info_name, place)
            for name, (info_name, place) in file.symbolic_dimensions().items()
            if info_name not in fixed
        }
        network = at.load(replace(file, fixed=fixed).graph(sizes), threads=self.threads, records=False)

        def draw(rng: np.random.Generator) -> dict[str, Any]:
            return {s.name: _input(rng, s.shape, s.numpy_dtype) for s in network.inputs} | fixed

        return try_model(file.model, lambda: FixedInputs(network, fixed), draw, self.n_calls, 0, report, TOLERANCE)

    def _size(self, name: str, place: int) -> int:
        if name in self.setting.shapes:
            return self.setting.shapes[name][place]
        return ELSEWHERE if place else FRONT

    @staticmethod
    def _dtype(model: Any, name: str) -> np.dtype[Any]:
        for info in model.graph.input:
            if info.name == name:
                dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
                return dtype
        known = ", ".join(info.name for info in model.graph.input)
        raise UsageError(f"--fix {name}: the model has no such input; it has {known}")


@dataclass(frozen=True)
class FixedInputs:
    """A network that is called as the file is: with the inputs that are constants of it, too."""

    network: Any
    fixed: Mapping[str, Any]

    @property
    def outputs(self) -> Any:
        return self.network.outputs

    def __call__(self, *, out: object = None, **named: Any) -> Any:
        return self.network(**{name: array for name, array in named.items() if name not in self.fixed}, out=out)


def _input(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Floats around 0; integers are the bytes of a file."""
    return rng.integers(0, 257, shape).astype(dtype) if dtype.kind in "iu" else drawn(rng, shape, dtype)


def trials(paths: Sequence[Path], given: Setting, threads: Sequence[int], n_calls: int) -> Iterator[ModelTrial]:
    """What is tried: each ONNX file of `paths`, which may be folders, in each of its settings. Raises UsageError for a
    path with no ONNX file."""
    for path in paths:
        files = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"there is no ONNX file in {path}: name one, or a folder with some")
        for file in files:
            settings = SETTINGS.get(file.name, (Setting(),))
            if given.shapes or given.fixed:
                settings = (given,)
            yield from (ModelTrial(file, setting, n, n_calls) for setting in settings for n in threads)


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """'x=1,3,48,48' -> ('x', (1, 3, 48, 48))."""
    name, _, values = text.rpartition("=")
    return name, tuple(options.size(f"{name}={value}")[1] for value in values.split(","))


def fixed_input(text: str) -> tuple[str, int]:
    """'sr=16000' -> ('sr', 16000)."""
    name, _, value = text.rpartition("=")
    return name, options.integer(0)(value)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.shipped_models", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="ONNX files, or folders with some")
    add("--shape", type=input_shape, action="append", default=[], metavar="INPUT=N,..", help="shape of an input")
    add("--fix", type=fixed_input, action="append", default=[], metavar="INPUT=N", help="an input that is a number")
    add("--threads", type=options.counts, default=(1, 2), metavar="N,..", help="default 1,2")
    add("--calls", type=options.integer(1), default=N_CALLS, metavar="N", help=f"of each trial (default {N_CALLS})")
    add("--limit", type=options.duration, default=LIMIT_S, metavar="TIME", help="for each trial, default 10m")
    add("--json", type=Path, metavar="FILE", help="write the rows with the facts of the machine")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        todo = list(trials(args.paths, Setting(dict(args.shape), dict(args.fix)), args.threads, args.calls))
    except AutoschedError as error:
        parser.error(str(error))
    rows = []
    for trial, facts in run_in_children(todo, ModelTrial.run, args.limit):
        rows.append({"trial": str(trial), **facts})
        largest = f"  largest difference {facts['largest']:.1e}" if "largest" in facts else ""
        print(f"{facts['verdict']:8} {trial}{largest}  {facts.get('reason', '')}".rstrip(), flush=True)
    counts = Counter(row["verdict"] for row in rows)
    print(f"{len(rows)} trials: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    if args.json:
        facts = {"schema_version": 1, "host": host_facts(), "peers": package_versions(("onnx", "onnxruntime"))}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return int(counts["right"] < len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
