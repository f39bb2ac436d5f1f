"""Makes the forest that `Policy(prior=True)` starts from, of the committed programs.

    python -m experiments.pretrain

Programs for one thread teach it: of the committed times those with two threads repeat too badly. Run it
after a change of features or of the draft; the file is named after the features, older ones are removed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from autosched.errors import AutoschedError
from cost_model import prior
from cost_model.ranker import Ranker, labels
from experiments.programs import COMMITTED, from_databases, read, tabulate


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.pretrain", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--db", type=Path, nargs="+", help="take the programs of these databases")
    args = parser.parse_args(argv)
    try:
        tasks = from_databases(args.db) if args.db else read(COMMITTED)
    except AutoschedError as error:
        parser.error(str(error))
    table = tabulate([task for task in tasks if task.threads == 1])
    ranker = Ranker()
    ranker.fit(table.features, labels(table.seconds, table.task), table.task)
    path = prior.path()
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.glob("cpu-*.ubj"):
        old.unlink()
    path.write_bytes(ranker.save())
    print(f"{path}: {path.stat().st_size} bytes, from {len(table)} programs of {len(table.tasks)} workloads")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
