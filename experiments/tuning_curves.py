"""Tuning curves: best throughput against trials and against seconds, for the search and for each part left out of it.

    python -m experiments.tuning_curves [--case c2d:3] [--batch 1] [--batch 16] [--variants full,random,...]
        [--seeds 5] [--trials 200] [--threads N] [--peer-python PEERS/bin/python] [--out DIRECTORY] [--for 80s]

The default case is the last 3x3 convolution of ResNet-50. Variants are those of `experiments.tuning_session`:
`full`; `random` sampling; `no_model`: the analytic draft alone judges; `no_draft`: random first rounds, and a model
that knows nothing but measured times; `no_crossover`; `no_descent`: no coordinate descent; `limited`: no packed
operands, tiles that divide. `metaschedule` comes with `--peer-python`, an interpreter that has TVM.

Every session (a variant with a seed) runs in a fresh process with an empty database. The result file is written after
each, and a later call with the same settings goes on from it: `--for` starts no session after so long. Then the figure
is drawn beside it, medians as lines and ranges over the seeds as bands, and a table printed. Throughput is that of the
candidates as they were measured during the search; `best_s` is of the final comparison. Run it on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autosched.cli import options
from autosched.errors import AutoschedError, UsageError
from autosched.kernel.device import find_device
from autosched.target import usable_cores
from experiments.metaschedule import PEER, check_peer
from experiments.tuning import BenchmarkCase, answer, load_now, parse_cases, result_file, write_results
from experiments.tuning_figure import draw, summary
from experiments.tuning_session import VARIANTS

METASCHEDULE = "metaschedule"
NAMES = {name: variant.says for name, variant in VARIANTS.items()} | {METASCHEDULE: "MetaSchedule"}
RESULTS = Path(__file__).resolve().parent / "results"
TIMEOUT_S = 3600.0  # of one session
KEPT = (
    "trials", "failed", "failures", "best_s", "best_ci_s", "gflops", "peak_gflops", "wall_s", "prepare_s", "search_s",
    "model_s", "build_s", "check_s", "measure_s", "other_s", "trials_to_95", "seconds_to_95", "first_round_ratio",
    "sketch", "values", "curve",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """What all sessions of a figure have in common."""

    case: str
    shape: tuple[int, ...]
    batch: int
    trials: int
    threads: int | None

    @property
    def workload(self) -> str:
        return self.case.partition(":")[0]

    @property
    def name(self) -> str:
        return f"tuning_curves-{self.case.replace(':', '-')}-n{self.batch}"

    @property
    def title(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else "all cores"
        return f"{self.case}, N={self.batch}, {threads}"


Run = Callable[[Figure, str, int], dict[str, Any]]  # setting, variant, seed -> the object of `tune --json`


def our_session(setting: Figure, variant: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.tuning_session", setting.workload, "--variant", variant]
    command += ["--shape", ",".join(map(str, setting.shape)), "--batch", str(setting.batch)]
    command += ["--trials", str(setting.trials), "--seed", str(seed)]
    command += [] if setting.threads is None else ["--threads", str(setting.threads)]
    return answer(command, TIMEOUT_S)


def peer_session(python: Path, setting: Figure, seed: int) -> dict[str, Any]:
    """MetaSchedule's: `curve` as in our own results, each trial at the second when its batch was measured."""
    with tempfile.TemporaryDirectory(prefix="metaschedule-") as scratch:
        command = [str(python), str(PEER), "tune", "--workload", setting.workload, "--library", f"{scratch}/best.so"]
        command += ["--shape", ",".join(map(str, (setting.batch, *setting.shape[1:])))]
        command += ["--trials", str(setting.trials), "--seed", str(seed)]
        command += ["--threads", str(setting.threads or usable_cores())]
        found = answer(command, TIMEOUT_S)
    if "error" not in found:
        found["curve"] = best_so_far(found.pop("history"))
        found["wall_s"] = found["tuning_s"]
    return found


def best_so_far(history: Sequence[tuple[float, float | None]]) -> list[list[float]]:
    """[[trial, elapsed_s, best_s]] where the best changed, of (elapsed_s, seconds or None) of every trial in order."""
    curve: list[list[float]] = []
    for trial, (elapsed_s, seconds) in enumerate(history, start=1):
        if seconds is not None and (not curve or seconds < curve[-1][2]):
            curve.append([trial, elapsed_s, seconds])
    return curve


# The result file


def known_sessions(path: Path, setting: Figure) -> list[dict[str, Any]]:
    """The sessions of an earlier call. Raises UsageError where the file is of other settings."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same, sessions = content["settings"] == json.loads(json.dumps(asdict(setting))), content["sessions"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result of this experiment: move it away") from error
    if not same:
        raise UsageError(f"{path} was made with other settings ({content['settings']}): name another --out")
    return list(sessions)


def summarise(variant: str, seed: int, load: float, found: Mapping[str, Any]) -> dict[str, Any]:
    """A session of the result file."""
    start = {"variant": variant, "seed": seed, "load_before": load}
    if "error" in found:
        return {**start, "error": found["error"]["message"]}
    return {**start, **{name: found[name] for name in KEPT if name in found}}


def collect(path: Path, setting: Figure, todo: Sequence[tuple[str, int]], run: Run, until: float) -> bool:
    """Runs what is missing of `todo` into the file; whether all of it is there now. `until`: on time.monotonic."""
    sessions = known_sessions(path, setting)
    done = {(s["variant"], s["seed"]) for s in sessions if "error" not in s}
    sessions = [s for s in sessions if "error" not in s]
    for variant, seed in todo:
        if (variant, seed) in done:
            continue
        if time.monotonic() >= until:
            return False
        load = load_now()
        sessions.append(summarise(variant, seed, load, run(setting, variant, seed)))
        said = sessions[-1].get("error") or f"{1e6 * sessions[-1]['best_s']:.1f} us"
        print(f"{setting.case} N={setting.batch} {variant} seed {seed}: {said}", file=sys.stderr, flush=True)
        write_results(path, {"settings": asdict(setting), "sessions": sessions})
    return True


def report(path: Path, setting: Figure) -> str:
    """Draws the figure and returns the table below it."""
    sessions = [s for s in known_sessions(path, setting) if "error" not in s]
    try:
        draw(path.with_suffix(".png"), setting.title, sessions, NAMES, setting.trials)
    except UsageError as missing:  # what was measured is worth its table without a figure
        print(missing, file=sys.stderr)
    return f"{setting.title}\n{summary(sessions, NAMES)}"


def result_folder(text: str) -> Path:
    return result_file(f"{text}/any.json").parent


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.tuning_curves", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--case", default="c2d:3", help="a workload with the number of its shape (default c2d:3)")
    parser.add_argument("--batch", type=options.integer(1), action="append", metavar="N", help="default: 1 and 16")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="default: all of our own")
    parser.add_argument("--seeds", type=options.integer(1), default=5, metavar="N", help="default 5")
    parser.add_argument("--trials", type=options.integer(1), default=200, metavar="N", help="default 200")
    parser.add_argument("--threads", type=options.integer(1), metavar="N", help="default: the processor's cores")
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON", help="adds MetaSchedule, run with this one")
    parser.add_argument("--out", type=result_folder, default=RESULTS, metavar="DIRECTORY")
    parser.add_argument("--for", type=options.duration, dest="seconds", metavar="TIME", help="start no session later")
    return parser


def main(argv: Sequence[str] | None = None, run: Run | None = None) -> int:
    parser = parser_of()
    args = parser.parse_args(argv)
    until = time.monotonic() + (args.seconds or float("inf"))
    variants = [v.strip() for v in args.variants.split(",")]

    def default_run(setting: Figure, variant: str, seed: int) -> dict[str, Any]:
        if variant == METASCHEDULE:
            return peer_session(args.peer_python, setting, seed)
        return our_session(setting, variant, seed)

    complete = True
    try:
        if args.peer_python is not None:
            check_peer(args.peer_python)
            variants = list(dict.fromkeys((*variants, METASCHEDULE)))
        unknown = [v for v in variants if v not in (*VARIANTS, METASCHEDULE)]
        if unknown:
            raise UsageError(f"there is no variant {unknown[0]}; there are {', '.join(VARIANTS)}")
        if METASCHEDULE in variants and args.peer_python is None:
            raise UsageError("metaschedule needs --peer-python, an interpreter that has TVM")
        find_device("cpu", args.threads)
        (case, *more) = parse_cases(args.case)
        if more or not isinstance(case, BenchmarkCase) or case.shape is None:
            raise UsageError(f"name one case with the number of its shape, as in c2d:3, not {args.case!r}")
        todo = [(variant, seed) for seed in range(args.seeds) for variant in variants]
        for batch in args.batch or (1, 16):
            setting = Figure(case.label, case.shape, batch, args.trials, args.threads)
            path = args.out / f"{setting.name}.json"
            complete = collect(path, setting, todo, run or default_run, until) and complete
            if path.exists():
                print(report(path, setting))
    except AutoschedError as error:
        parser.error(str(error))
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
