"""Fits the constants of the GPU's analytic latency to measured candidates.

    python -m experiments.gpu.fit FILE... [--facts LEDGER] [--write]

FILE is what `experiments.gpu.calibrate` wrote; LEDGER, of a run with the step `facts`, tells what tensor cores do. Each
candidate's latency is a closed form in the constants of `cost_model.gpu.constants`; their logarithms are changed,
within limits, until the logarithms of the latencies are as near as can be to those of the measured times (Levenberg and
Marquardt's method, outliers weighted down, candidates that are near their problem's best weighted up, constants drawn
to what the papers say). Needs no device. Printed are, for
each problem before and after: the rank correlation, and the regret (the time of the model's pick by the best measured
time); then the constants. --write puts them into the table that the model reads, under the card's name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.cli.output import table
from autosched.errors import AutoschedError, UsageError
from autosched.ir.closed_forms.program import Floats, Program
from autosched.ir.expr import Param
from autosched.target import GpuFacts, Target, parse_target
from cost_model.analysis.access import Geometry
from cost_model.analysis.statements import analyse
from cost_model.gpu.constants import CARDS, NAMES, CardConstants, constants_of, matrix_rates_of, read_cards, with_card
from cost_model.gpu.latency import gpu_analytic_latency
from cost_model.gpu.machine import SECTOR, GpuMachine, gpu_machine
from experiments.gpu.drawn import CalibrationProblem, problem_model
from experiments.gpu.fit_quality import FitQuality, ranking

PREFIX = "constant."
SYMBOLS = CardConstants(**{name: Param(PREFIX + name) for name in NAMES})
# How far a constant may be from the papers' (a factor), and how far it is drawn back to them: `PULL` of a measurement
# for each standard deviation `SPREAD`, in logarithms.
FREEDOM, TIGHT = 4.0, {"clock_share": 1.03, "tensor_share": 1.5, "dram_share": 1.08}
SPREAD, PULL = 0.5, 2.0
STEPS = 120
OUTLIER = 0.3  # of a logarithm, beyond which a difference counts less
LEVEL = 0.6  # share of a problem's mean difference that does not count


@dataclass(frozen=True, eq=False)
class MeasuredSketch:
    """Rows of one sketch of a problem with their measured seconds, and the latency as a function of the constants."""

    problem: str
    sketch: str
    program: Program
    rows: Floats  # [n, parameters]
    seconds: Floats  # [n]

    def predicted(self, constants: Floats) -> Floats:
        """[c, n] seconds for so many vectors of constants [c, len(NAMES)]."""
        c, n = len(constants), len(self.rows)
        matrix = np.concatenate([np.tile(self.rows, (c, 1)), np.repeat(constants, n, axis=0)], axis=1)
        seconds: Floats = self.program(matrix)[0].reshape(c, n)
        return seconds


@dataclass(frozen=True, eq=False)
class Calibration:
    """All that was measured on a card."""

    target: Target
    sketches: tuple[MeasuredSketch, ...]
    left_out: tuple[str, ...]  # what no sketch of today is called, or was not measured
    matrix_rates: Mapping[str, float]  # see `cost_model.gpu.constants.matrix_rates_of`

    @property
    def facts(self) -> GpuFacts:
        assert self.target.gpu is not None
        return self.target.gpu

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.problem for s in self.sketches))

    def of_problem(self, label: str, constants: CardConstants) -> tuple[Floats, Floats]:
        """(predicted, measured) seconds of all candidates of a problem."""
        mine = [s for s in self.sketches if s.problem == label]
        predicted = [s.predicted(vector(constants)[None, :])[0] for s in mine]
        return np.concatenate(predicted), np.concatenate([s.seconds for s in mine])


def vector(constants: CardConstants) -> Floats:
    return np.array([float(x) for x in asdict(constants).values()])


def constants_from(values: Floats) -> CardConstants:
    return CardConstants(**dict(zip(NAMES, map(float, values), strict=True)))


def read(files: Iterable[Path], ledger: Path | None = None) -> Calibration:
    """What the files hold of one card; without a `ledger` its tensor cores are as fast as the table has them.

    Raises UsageError for other files, and for several cards.
    """
    lines = [entry for file in files for entry in _entries(file)]
    cards = {json.dumps(x["card"], sort_keys=True) for x in lines if "card" in x}
    names = {json.loads(card)["name"] for card in cards}
    kinds = {x["target"] for x in lines if "target" in x}
    if len(names) != 1 or len(kinds) != 1:
        raise UsageError(f"measurements of one card are expected, found {', '.join(sorted(names)) or 'none'}")
    card = json.loads(sorted(cards)[0])
    facts = GpuFacts(**{**card, "max_grid": tuple(card["max_grid"])})
    target = parse_target(kinds.pop()).with_gpu(facts)
    rates = matrix_rates_of(facts) if ledger is None else _matrix_rates(ledger, facts)
    problems = {x["problem"]["label"]: x["problem"] for x in lines if "problem" in x}
    found: list[MeasuredSketch] = []
    left_out: list[str] = []
    for label, said in problems.items():
        rows = [x for x in lines if x.get("label") == label]
        left_out += [f"{label}: {x['failure']}" for x in rows if "failure" in x]
        problem = CalibrationProblem(said["workload"], tuple(said["shape"]), said["dtype"], said["candidates"])
        machine = gpu_machine(target, SYMBOLS, rates)
        made, unknown = _measured(problem, machine, [x for x in rows if "seconds" in x])
        found += made
        left_out += unknown
    return Calibration(target, tuple(found), tuple(left_out), rates)


def _matrix_rates(ledger: Path, facts: GpuFacts) -> Mapping[str, float]:
    """Of the card, in multiply-adds of a multiprocessor in a cycle. Raises UsageError for a ledger of another card."""
    try:
        rows = json.loads(ledger.read_text(encoding="utf-8"))["steps"]["facts"]["rows"]
        name = rows["attributes"]["name"]
        gflops = {pipe: float(row["gflops"]) for pipe, row in rows.items() if "mma." in pipe and "gflops" in row}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{ledger} is no ledger of a run with the step facts: {error!r}") from None
    if name != facts.name:
        raise UsageError(f"{ledger} is of {name}, but the measurements are of {facts.name}: give its own ledger")
    return {pipe: rate / (2 * facts.multiprocessors * facts.clock_ghz) for pipe, rate in gflops.items()}


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file; the last one may have been cut off."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; write it with experiments.gpu.calibrate") from None
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def _measured(
    problem: CalibrationProblem, symbolic: GpuMachine, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[MeasuredSketch], list[str]]:
    of = problem_model(problem, symbolic.target)
    found: list[MeasuredSketch] = []
    for i, sketch in enumerate(of.sketches):
        names = [p.name for p in sketch.params]
        mine = [x for x in rows if x["sketch"] == sketch.name and set(x["values"]) <= set(names)]
        if not mine:
            continue
        latency = gpu_analytic_latency(analyse(of.nests[i], Geometry(SECTOR)), symbolic)
        program = Program([latency.seconds], (*names, *(PREFIX + name for name in NAMES)))
        least = {p.name: p.domain[0] for p in sketch.params}  # of what a sketch did not have when it was measured
        values = np.array([list((least | x["values"]).values()) for x in mine], np.float64)
        seconds = np.array([min(x["samples"]) for x in mine])
        found.append(MeasuredSketch(problem.label, sketch.name, program, values, seconds))
    known = {s.sketch for s in found}
    return found, [f"{problem.label}: no sketch {x['sketch']}" for x in rows if x["sketch"] not in known]


def fit(of: Calibration, start: CardConstants) -> CardConstants:
    """The constants that explain what was measured best, near `start`."""
    prior = np.log(vector(start))
    freedom = np.log([TIGHT.get(name, FREEDOM) for name in NAMES])
    measured = np.log(np.concatenate([s.seconds for s in of.sketches]))
    weight, apart_of = _weights(of), _Apart.of(of)
    pull = np.full(len(prior), PULL * OUTLIER**2 / SPREAD**2)

    def apart(logs: Floats) -> Floats:
        """[c, n] differences of logarithms for so many vectors of logarithms."""
        found = [s.predicted(np.exp(np.atleast_2d(logs))) for s in of.sketches]
        return apart_of(np.log(np.concatenate(found, axis=1)) - measured)

    def loss(logs: Floats) -> float:
        off = np.abs(apart(logs)[0])
        huber = np.where(off < OUTLIER, off**2, OUTLIER * (2 * off - OUTLIER))
        return float(weight @ huber + pull @ (logs - prior) ** 2)

    at, damping = prior.copy(), 1.0
    best = loss(at)
    for _ in range(STEPS):
        values = apart(np.vstack([at, at + 1e-3 * np.eye(len(at))]))
        off, slope = values[0], (values[1:] - values[0]).T / 1e-3
        scale = weight * np.minimum(1.0, OUTLIER / np.maximum(np.abs(off), 1e-9))
        curvature = slope.T @ (slope * scale[:, None]) + np.diag(pull)
        downhill = slope.T @ (scale * off) + pull * (at - prior)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -downhill)
        there = np.clip(at + step, prior - freedom, prior + freedom)
        if (found := loss(there)) < best:
            at, best, damping = there, found, max(damping / 3, 1e-4)
        else:
            damping *= 4
    return constants_from(np.exp(at))


def _weights(of: Calibration) -> Floats:
    """[n] of each candidate: what is slower than its problem's best counts less, by that factor."""
    best = {p: min(float(s.seconds.min()) for s in of.sketches if s.problem == p) for p in of.problems}
    return np.concatenate([best[s.problem] / s.seconds for s in of.sketches])


@dataclass(frozen=True, eq=False)
class _Apart:
    """Takes most of the mean of each problem away: the order within a problem is what matters."""

    places: tuple[npt.NDArray[np.intp], ...]

    @staticmethod
    def of(found: Calibration) -> _Apart:
        label = np.repeat(
            [found.problems.index(s.problem) for s in found.sketches], [len(s.rows) for s in found.sketches]
        )
        return _Apart(tuple(np.flatnonzero(label == i) for i in range(len(found.problems))))

    def __call__(self, off: Floats) -> Floats:
        result = off.copy()
        for places in self.places:
            result[:, places] -= LEVEL * off[:, places].mean(axis=1, keepdims=True)
        return result


def report(of: Calibration, before: CardConstants, after: CardConstants) -> str:
    """A row for each problem, means, and the constants that changed."""
    rows, found = [], []
    for label in of.problems:
        pair = [ranking(*of.of_problem(label, constants)) for constants in (before, after)]
        found.append(pair)
        rows.append((label, str(len(of.of_problem(label, before)[1])), *(w for q in pair for w in _words(q))))
    means = [
        FitQuality(*(float(np.mean([getattr(pair[i], name) for pair in found])) for name in asdict(found[0][0])))
        for i in range(2)
    ]
    rows.append(("mean", "", *(w for q in means for w in _words(q))))
    names = ("rho", "regret", "of 4", "level")
    header = ("problem", "n", *(f"{name} before" for name in names), *(f"{name} after" for name in names))
    pairs = zip(NAMES, vector(before), vector(after), strict=True)
    changed = [f"{name}: {a:.4g} -> {b:.4g}" for name, a, b in pairs]
    return "\n".join([table(header, rows), *changed])


def _words(q: FitQuality) -> tuple[str, ...]:
    return (f"{q.correlation:.2f}", f"{q.regret:.2f}", f"{q.regret_of_4:.2f}", f"{q.level:.2f}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiments.gpu.fit", description="fit a card's constants, off the card")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what experiments.gpu.calibrate wrote")
    parser.add_argument("--facts", type=Path, metavar="LEDGER", help="what a run with the step facts wrote")
    parser.add_argument("--write", action="store_true", help=f"put them into {CARDS.name}")
    args = parser.parse_args(argv)
    try:
        of = read(args.files, args.facts)
        if not of.sketches:
            raise UsageError("there is no measured candidate of a sketch that exists")
        found = fit(of, CardConstants())
        print(report(of, constants_of(of.facts), found))
        for line in dict.fromkeys(of.left_out):
            print(f"left out {of.left_out.count(line)} of {line}")
        if args.write:
            count = sum(len(s.seconds) for s in of.sketches)
            fitted_to = f"{count} candidates of {len(of.problems)} problems"
            text = with_card(read_cards(), of.facts, found, fitted_to, of.matrix_rates)
            CARDS.write_text(text, encoding="utf-8")
    except AutoschedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
