"""One tuning session of a variant of the search, in this process: its result as one JSON object on the last line.

python -m experiments.tuning_session c2d --shape 1,7,7,512,512,3,1,1 --variant no_draft --seed 1 --trials 64
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import autosched as at
from autosched.cli import options
from autosched.errors import AutoschedError
from autosched.tuner.policy import Policy, SearchSetup
from autosched.tuner.result import Result
from experiments.plain_tiles import plain_tiles


@dataclass(frozen=True)
class Variant:
    """What a curve leaves out: `says` it in words for the figure."""

    says: str
    search: SearchSetup


VARIANTS: Mapping[str, Variant] = {
    "full": Variant("full system", SearchSetup()),
    "random": Variant("random sampling", SearchSetup(Policy(random=True))),
    "no_model": Variant("no learned model", SearchSetup(Policy(learned=False))),
    "no_draft": Variant("no draft", SearchSetup(Policy(draft=False))),
    "no_crossover": Variant("no crossover", SearchSetup(Policy(crossover=0.0))),
    "no_descent": Variant("no coordinate descent", SearchSetup(Policy(descent_share=0.0))),
    "limited": Variant("limited space", SearchSetup(narrow=plain_tiles)),
}


def session(args: argparse.Namespace, started: float) -> dict[str, object]:
    """The object of `tune --json`, of a search with an empty database."""
    variant = VARIANTS[args.variant]
    with tempfile.TemporaryDirectory(prefix="autosched-session-") as scratch:
        result: Result = at.tune(
            args.workload,
            shape=args.shape,
            batch=args.batch,
            threads=args.threads,
            trials=args.trials,
            seed=args.seed,
            db=Path(scratch) / "records.db",
            search=replace(variant.search, started=started),
        )
    return result.to_json()


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m experiments.tuning_session", description=(__doc__ or "")[:110])
    parser.add_argument("workload")
    parser.add_argument("--shape", type=options.shape)
    parser.add_argument("--variant", choices=VARIANTS, default="full")
    for name, default in (("trials", 64), ("seed", 0), ("threads", None), ("batch", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    try:
        found = session(parser.parse_args(argv), started)
    except AutoschedError as error:
        found = {"error": {"class": type(error).__name__, "message": str(error)}}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
