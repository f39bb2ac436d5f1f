"""Pipelines beside Halide: times of both in one run, interleaved.

    python -m experiments.pipelines [PROGRAM...] --trials 128 --threads 2 --rows 1536 --columns 2560 [--json FILE]

Halide (the extra `halide`) runs its three autoschedulers and a schedule by hand; ours runs untuned, and tuned with
--trials of them. Every result is compared with NumPy's in float64. A row has the median milliseconds of each, the time
of the fastest autoscheduler over ours, and the least megabytes that a call has to move.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import autosched as at
from autosched.cli.bench import geomean, time_interleaved
from autosched.cli.output import table
from autosched.te import Tensor
from experiments.hostinfo import host_facts
from experiments.pipelines import halide
from experiments.pipelines.makers import NumpyMaker, TeMaker
from experiments.pipelines.programs import PROGRAMS

RIGHT = 1e-3  # of the largest value
BYTE_STEPS = 1  # of bytes, where a rounding may fall to either side
UNTUNED, TUNED, BY_HAND = "untuned", "tuned", "by hand"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Contest:
    """A program at a size: its inputs, its result in float64, and where results are written."""

    name: str
    size: tuple[int, int]
    inputs: list[Tensor]
    result: Tensor
    arrays: list[Array]
    expected: Array

    @classmethod
    def of(cls, name: str, size: tuple[int, int]) -> Contest:
        maker, rng = TeMaker(), np.random.default_rng(0)
        result = PROGRAMS[name](maker, *size)
        assert isinstance(result, Tensor)
        arrays = [_drawn(t, rng) for t in maker.inputs]
        expected = PROGRAMS[name](NumpyMaker(list(arrays)), *size)
        assert isinstance(expected, np.ndarray)
        return cls(name, size, maker.inputs, result, arrays, expected)

    @property
    def workload(self) -> Callable[[], Tensor]:
        def pipeline() -> Tensor:
            return self.result

        pipeline.__name__ = self.name
        return at.workload(pipeline)

    @property
    def least_bytes(self) -> int:
        return sum(t.nbytes for t in (*self.inputs, self.result))

    def out(self) -> Array:
        return halide.aligned(self.result.shape, self.result.dtype)

    def is_right(self, out: Array) -> bool:
        apart = np.abs(out.astype("float64") - self.expected).max()
        most = BYTE_STEPS if self.result.dtype == "uint8" else RIGHT * np.abs(self.expected).max()
        return bool(apart <= most)


def _drawn(tensor: Tensor, rng: np.random.Generator) -> Array:
    array = halide.aligned(tensor.shape, tensor.dtype)
    array[...] = rng.random(tensor.shape) + 0.1 if tensor.dtype == "float32" else rng.integers(0, 1024, tensor.shape)
    return array


def ours(contest: Contest, threads: int, trials: int) -> Mapping[str, Callable[[], Array]]:
    """The kernel as the model chooses it, and tuned."""
    kernels = {UNTUNED: at.compile(contest.workload, threads=threads)}
    if trials:
        kernels[TUNED] = at.tune(contest.workload, threads=threads, trials=trials).compile()
    return {name: _call(kernel, contest.arrays, contest.out()) for name, kernel in kernels.items()}


def _call(kernel: Any, arrays: list[Array], out: Array) -> Callable[[], Array]:
    def run() -> Array:
        kernel(*arrays, out=out)
        return out

    return run


def theirs(contest: Contest, threads: int) -> tuple[dict[str, Callable[[], Array]], dict[str, str]]:
    """Halide's schedules, and why others do not run."""
    os.environ["HL_NUM_THREADS"] = str(threads)
    hl, made, refused = halide.load_autoschedulers(), dict[str, Callable[[], Array]](), dict[str, str]()
    given = (PROGRAMS[contest.name], contest.size, contest.arrays)
    makers: dict[str, Callable[[Array], Callable[[], object]]] = {
        name: partial(halide.automatic, hl, name, threads, *given) for name in halide.AUTOSCHEDULERS
    }
    strips = (rows for rows in halide.STRIPS if rows <= contest.size[0])
    makers |= {f"{BY_HAND} {rows}": partial(halide.by_hand, hl, rows, *given) for rows in strips}
    for name, make in makers.items():
        out = contest.out()
        try:
            run = make(out)
            run()
        except (hl.HalideError, RuntimeError) as error:
            refused[name] = str(error).splitlines()[0]
            continue
        made[name] = _with_result(run, out)
    return made, refused


def _with_result(run: Callable[[], object], out: Array) -> Callable[[], Array]:
    def result() -> Array:
        run()
        return out

    return result


def measured(contest: Contest, threads: int, trials: int) -> dict[str, Any]:
    """The row of a contest; a contestant with a wrong result is named and not timed."""
    peers, refused = theirs(contest, threads)
    runs = {**ours(contest, threads, trials), **peers}
    wrong = [name for name, run in runs.items() if not contest.is_right(run())]
    seconds = time_interleaved({name: run for name, run in runs.items() if name not in wrong})
    hand = {name: s for name, s in seconds.items() if name.startswith(BY_HAND)}
    automatic = {name: s for name, s in seconds.items() if name in halide.AUTOSCHEDULERS}
    return {
        "program": contest.name,
        "size": contest.size,
        "threads": threads,
        "seconds": {name: s for name, s in seconds.items() if name not in hand} | _fastest(hand),
        "ratio": {
            name: {peer: min(times.values()) / seconds[name] for peer, times in _peers(automatic, hand)}
            for name in (UNTUNED, TUNED)
            if name in seconds
        },
        "least_bytes": contest.least_bytes,
        "wrong": wrong,
        "refused": refused,
    }


def _fastest(hand: Mapping[str, float]) -> dict[str, float]:
    return {BY_HAND: min(hand.values())} if hand else {}


def _peers(automatic: Mapping[str, float], hand: Mapping[str, float]) -> list[tuple[str, Mapping[str, float]]]:
    return [(name, times) for name, times in (("automatic", automatic), (BY_HAND, hand)) if times]


def _printed(rows: list[dict[str, Any]]) -> str:
    names = (UNTUNED, TUNED, *halide.AUTOSCHEDULERS, BY_HAND)
    ratios = [(name, peer) for name in (UNTUNED, TUNED) for peer in ("automatic", BY_HAND)]
    lines = []
    for row in rows:
        times = [f"{1e3 * row['seconds'][n]:.2f}" if n in row["seconds"] else "-" for n in names]
        parts = [row["ratio"].get(n, {}).get(p) for n, p in ratios]
        lines.append(
            [
                row["program"],
                *times,
                *("-" if r is None else f"{r:.2f}" for r in parts),
                f"{row['least_bytes'] / 1e6:.0f}",
            ]
        )
    means = [geomean([r for row in rows if (r := row["ratio"].get(n, {}).get(p)) is not None]) for n, p in ratios]
    lines.append(["geometric mean", *[""] * len(names), *("-" if m is None else f"{m:.2f}" for m in means), ""])
    heads = ["program", *(f"{n}, ms" for n in names), *(f"{p} / {n}" for n, p in ratios), "least MB"]
    return table(heads, lines)


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def main() -> int:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.pipelines", description=about)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--trials", type=int, default=128, help="of tuning; 0: untuned only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1536)
    parser.add_argument("--columns", type=int, default=2560)
    parser.add_argument("--json", type=Path, help="a file for the rows and the facts of the machine")
    options = parser.parse_args()
    for name in options.programs:
        if name not in PROGRAMS:
            parser.error(f"there is no program {name}; there are {', '.join(PROGRAMS)}")
    rows = []
    for name in options.programs or PROGRAMS:
        rows.append(measured(Contest.of(name, (options.rows, options.columns)), options.threads, options.trials))
        print(f"{name}: {'; '.join(f'{k} {1e3 * s:.2f} ms' for k, s in rows[-1]['seconds'].items())}", flush=True)
        for contestant in rows[-1]["wrong"]:
            print(f"  {contestant} is wrong")
        for contestant, reason in rows[-1]["refused"].items():
            print(f"  {contestant} does not run: {reason}")
    print(_printed(rows))
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(name in (UNTUNED, TUNED) for row in rows for name in row["wrong"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
