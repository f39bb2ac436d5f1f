"""Long fault runs: real tuners are killed, stopped and starved at random moments, and what is left is looked at.

python -m tests.faults kills --n 200 --seed 0     F1: kill -9 of the tuner, half of them once rows come, then --resume
python -m tests.faults groups --n 100             F2: kill -9 of the tuner and all its workers
python -m tests.faults stops --n 5                F4: SIGSTOP of a worker
python -m tests.faults disk --n 20                F11: no room in a file, then --resume
python -m tests.faults signals --n 50             F19: Ctrl-C once and twice, SIGTERM, SIGHUP
python -m tests.faults pairs --n 5                F15, F16: two tuners, one file, others that read and pack it
python -m tests.faults all --n 5                  each of them
python -m tests.faults.soak --minutes 1           F26: one process, many searches, random faults

Bounds: no acknowledged row lost, a sound database, a verified best after --resume, no process of a killed tuner after
2 s, no scratch or temporary files after a finished one. Prints one line for each family and the broken bounds; the
exit code is 1 if there are any. Moments come from the seed; what a tuner does at a moment depends on the machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import ends, together
from tests.faults.place import Place

FAMILIES = {f.__name__: f for f in (ends.kills, ends.groups, ends.stops, ends.disk, ends.signals, together.pairs)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=[*FAMILIES, "all"])
    parser.add_argument("--n", type=int, default=5, help="cases of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case of a family after this time")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.n} cases each", flush=True)
    names = list(FAMILIES) if options.family == "all" else [options.family]
    broken = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as root:
        for name in names:
            rng = random.Random(f"{options.seed} {name}")
            place = Place.make(Path(root) / name, time.monotonic() + options.seconds)
            try:
                tally = FAMILIES[name](place, options.n, rng)
            finally:
                place.kill_all()
            print(tally.line(), *(f"  BROKEN {fault}" for fault in tally.broken), sep="\n", flush=True)
            broken += len(tally.broken)
    print(f"{len(names)} families, {broken} bounds broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
