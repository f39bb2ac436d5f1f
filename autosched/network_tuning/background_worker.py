"""Process of background tuning:

    python -m autosched.network_tuning.background_worker PARENT_PID MODEL.asc TUNED.asc SECONDS THREADS TARGET

The process and its workers run at idle priority (SCHED_IDLE) and end with their parent. It writes the network with its
new schedules to TUNED.asc; on failure the last line on stderr is the reason.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autosched.errors import AutoschedError
from autosched.executor.compile_graph import compile_graph
from autosched.measure.worker import end_with
from autosched.network_tuning.background import tune_here
from autosched.planning.archive import load_archive


def main(parent: str, archive: str, tuned_archive: str, seconds: str, threads: str, target: str) -> int:
    end_with(int(parent))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        graph, choices = load_archive(Path(archive))
        tune_here(compile_graph(graph, target, int(threads), choices), float(seconds)).save(tuned_archive)
    except AutoschedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
