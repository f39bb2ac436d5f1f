"""The command: `experiments.nnsmith` says what it does."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import experiments.nnsmith
from autosched.cli import options
from autosched.errors import AutoschedError
from experiments.differential.children import Facts, Report, run_in_children
from experiments.differential.trial import drawn, inputs_of, try_model
from experiments.hostinfo import host_facts, package_versions
from experiments.nnsmith.generate import Generator, generator
from experiments.nnsmith.mutate import mutated
from experiments.scoreboard.__main__ import revision

N_NODES = 12  # operators of a model, at most
LIMIT_S = 180.0  # for a model: the solver, the build and the calls
VERDICTS = ("right", "rounding", "undefined", "peers disagree", "wrong", "crashed", "hung", "refused", "no model")
BAD = ("wrong", "crashed", "hung")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "nnsmith.json"


@dataclass(frozen=True)
class RandomModel:
    """The model of a seed, and how it is tried; of four seeds three are mutated."""

    seed: int
    n_calls: int
    keep: Path

    @property
    def file(self) -> Path:
        return self.keep / f"{self.seed}.onnx"

    @property
    def threads(self) -> int:
        return 1 + self.seed // 4 % 2

    def run(self, generate: Generator, report: Report) -> Facts:
        """The verdict of the child."""
        report("generate")
        try:
            model = generate(self.seed, 2 + self.seed % (N_NODES - 1))
            if self.seed % 4:
                model = mutated(model, self.seed)
        except Exception as error:  # of another project's program: any class
            return {"verdict": "no model", "reason": f"{type(error).__name__}: {error}"[:300]}
        onnx.save(model, self.file)
        report("import")
        import autosched as at

        inputs = inputs_of(model)
        facts = try_model(
            model,
            lambda: at.load(self.file, threads=self.threads, records=False),
            lambda rng: {name: drawn(rng, shape, dtype) for name, (shape, dtype) in inputs.items()},
            self.n_calls,
            self.seed,
            report,
        )
        return {**facts, "operators": sorted({node.op_type for node in model.graph.node})}


def verdict_of(facts: Facts) -> str:
    """The column of a verdict. What dies before the load is the fuzzer or a peer."""
    if facts["verdict"] in ("no peer", "no model"):
        return "no model"
    if facts["verdict"] in ("crashed", "hung") and facts["phase"] in ("start", "generate", "peer"):
        return "no model"
    return str(facts["verdict"])


def until(models: Sequence[RandomModel], end: float) -> Iterator[RandomModel]:
    """The models that may start before `end`, by the monotonic clock."""
    return (model for model in models if time.monotonic() < end)


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the table: how many models have each verdict, and why those are that are not right."""
    counts = Counter(row["verdict"] for row in rows)
    lines = [f"{len(rows)} models"]
    for verdict in VERDICTS:
        lines.append(f"  {counts[verdict]:5} {verdict}")
        if verdict in ("refused", "no model"):
            reasons = Counter(without_names(row["reason"]) for row in rows if row["verdict"] == verdict)
            lines += [f"        {count:5} {reason}" for reason, count in reasons.most_common(20)]
        elif verdict in BAD:
            lines += [f"        seed {row['seed']}: {row['reason']}" for row in rows if row["verdict"] == verdict]
    return lines


def without_names(reason: str) -> str:
    """A reason without what is of its model alone."""
    for words in ("there is no operator ", "not supported: ", " is of type ", ": nothing is computed from "):
        if words in reason:
            return (words + reason.partition(words)[2].partition(" (")[0]).lstrip(" :")[:110]
    return reason[:110]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.nnsmith", description=experiments.nnsmith.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--models", type=options.integer(1), default=1000, metavar="N", help="default 1000")
    add("--calls", type=options.integer(1), default=50, metavar="N", help="of each model (default 50)")
    add("--seed", type=options.integer(0), default=0, metavar="S", help="of the first; each later one has the next")
    add("--budget", type=options.duration, metavar="TIME", help="no model starts after so long, as 60s or 30m")
    add("--jobs", type=options.integer(1), default=1, metavar="N", help="models at a time (default 1)")
    add("--limit", type=options.duration, default=LIMIT_S, metavar="TIME", help=f"for each model, default {LIMIT_S} s")
    add("--keep", type=Path, metavar="DIR", help="keep the models that are not right")
    add("--out", type=Path, default=RESULTS, metavar="JSON", help="default experiments/results/nnsmith.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        generate = generator()
    except AutoschedError as error:
        parser.error(str(error))
    import onnxruntime  # noqa: F401  each child would take its time

    import autosched.executor.compile_graph  # noqa: F401

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autosched-nnsmith-") as directory:
        keep = args.keep or Path(directory)
        keep.mkdir(parents=True, exist_ok=True)
        models = [RandomModel(args.seed + n, args.calls, keep) for n in range(args.models)]
        allowed = until(models, time.monotonic() + (args.budget or float("inf")))
        for model, facts in run_in_children(allowed, lambda m, say: m.run(generate, say), args.limit, args.jobs):
            row = {"seed": model.seed, "threads": model.threads, **facts, "verdict": verdict_of(facts)}
            rows.append(row)
            if row["verdict"] in (*BAD, "refused"):
                print(f"seed {model.seed}: {row['verdict']}: {row['reason']}", file=sys.stderr, flush=True)
            if row["verdict"] == "right":
                model.file.unlink(missing_ok=True)
    rows.sort(key=lambda row: int(row["seed"]))
    print("\n".join(summary(rows)))
    write(args.out, rows, args.calls)
    return int(any(row["verdict"] in BAD for row in rows))


def write(path: Path, rows: Sequence[dict[str, Any]], n_calls: int) -> None:
    """The result file: counts, and the rows of models that are not right."""
    facts = {
        "schema_version": 1,
        "host": host_facts(),
        "peers": package_versions(("nnsmith", "onnx", "onnxruntime", "torch", "z3-solver")),
        "revision": revision(),
        "calls": n_calls,
        "seeds": [row["seed"] for row in (rows[0], rows[-1])] if rows else [],
        "models": len(rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "operators": dict(sorted(Counter(name for row in rows for name in row.get("operators", ())).items())),
        "rows": [{k: v for k, v in row.items() if k != "operators"} for row in rows if row["verdict"] != "right"],
    }
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
