"""A process that tunes a network while another one runs it:

    python -m autosched.network_tuning.background_worker PARENT_PID GIVEN.asc MADE.asc SECONDS THREADS TARGET

It and its workers run when a processor has nothing else to do (SCHED_IDLE), and end with their parent. The archive
MADE.asc has the schedules that it found; where it fails, the last line on stderr says why.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autosched.errors import AutoschedError
from autosched.executor.compile_graph import compile_graph
from autosched.measure.worker import end_with
from autosched.network_tuning.background import improved
from autosched.planning.archive import load_archive


def main(parent: str, given: str, made: str, seconds: str, threads: str, target: str) -> int:
    end_with(int(parent))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        graph, choices = load_archive(Path(given))
        improved(compile_graph(graph, target, int(threads), choices), float(seconds)).save(made)
    except AutoschedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
