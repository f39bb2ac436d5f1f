"""A tuner that says which trials are durable: `python -m tests.faults.child DB TRIALS SEED [FILE_LIMIT]`.

A session tells its callbacks of a trial after its row was committed, so every line on standard output is a promise:
the sketch and the time, or the class of failure, of a row that must be found whatever happens next.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from autosched import api
from autosched.errors import AutoschedError
from autosched.tuner.callbacks import Event
from autosched.tuner.result import Result

WORKLOAD, SHAPE = "matmul", (64, 64, 64)


class Acknowledgements:
    def on_start(self, event: Event) -> None:
        """Nothing is promised yet."""

    def on_round(self, event: Event) -> None:
        """Nothing new is promised."""

    def on_result(self, event: Event) -> None:
        line = json.dumps([event.sketch, event.failure or event.seconds]) + "\n"
        os.write(1, line.encode())  # whole lines, nothing kept back

    def on_finish(self, result: Result) -> None:
        """The exit code tells."""


def main() -> int:
    path, trials, seed, *limit = sys.argv[1:]
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), resource.RLIM_INFINITY))
    try:
        api.tune(WORKLOAD, shape=SHAPE, trials=int(trials), seed=int(seed), db=path, callbacks=(Acknowledgements(),))
    except AutoschedError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
