"""Cycles of tuned kernels by the processor's own counters, on one thread.

    python -m experiments.cycles [c2d:3 grp ...] [--trials 64] [--batch N] [--seed S] [--out results.json]
                                 [--peer-python TVM/bin/python]

Where the clock wanders and a core is shared with strangers, seconds say more about the hour than about a kernel. Cycles
in user mode do not. Each case is tuned in a process of its own with a fresh database; its best kernel then runs in the
tuner's timing loop, and so does a loop of nothing but multiply-adds. Of many samples the smallest counts, for what else
runs on the core can only make it larger. `share` is the kernel's operations a cycle over those of the loop. What waits
for L3 or DRAM waits for another clock: for such kernels cycles compare two kernels, not two machines.

PyTorch, where it is installed, is called from Python in turn with the kernel, and so is the kernel then: the last
column is what PyTorch takes over that, each with a new result at each call. What the system does for them (the first
touch of fresh memory) is not in user mode.

The search itself goes by seconds, so a kernel here may not be the best of its search by cycles. Linux only, where it
lets a process count its own cycles (`kernel.perf_event_paranoid` of 2 or less, and counters in virtual machines).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from fcntl import ioctl
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from autosched.cli import options, peers
from autosched.errors import AutoschedError, DeviceError
from autosched.measure import timing
from autosched.runtime.peak import multiplier
from autosched.target import parse_target
from autosched.te.reference.inputs import make_inputs
from experiments.arena import Lost, ProcessArena
from experiments.metaschedule import MetaSchedule
from experiments.scoreboard.bouts import Bout
from experiments.scoreboard.contest import METASCHEDULE, TORCH, Rules, agreed, metaschedule_note, variables
from experiments.scoreboard.contestant import CALL, MULTIPLY, OURS, aligned, enter_ours, enter_peer
from experiments.tuning import BenchmarkCase, number, parse_cases, result_file, table, tune, write_results

FAMILIES = "c1d,c2d,gmm,grp,dil,dep,t2d,cap,nrm,sfm,cbr,tbg,tbs"  # c3d takes as long as all of them together
SAMPLE_S, SAMPLES_S = 1e-3, 1.5  # one sample, and all of a kernel
TUNING_TIMEOUT_S = 1800.0
ANSWER_S, REQUESTS, PEER_SAMPLE_CYCLES = 240.0, 3, 1e7  # of MetaSchedule's process
CYCLES, INSTRUCTIONS = 0, 1  # PERF_COUNT_HW_* of Linux's perf_event.h
_SYSCALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open
_ATTRIBUTE_BYTES, _FLAGS_AT = 128, 40
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403


class CycleCounter:
    """Counts one hardware event in user mode, of this thread or of the first of process `pid`. Raises DeviceError where
    the machine does not let it."""

    def __init__(self, event: int, pid: int = 0) -> None:
        attribute = bytearray(_ATTRIBUTE_BYTES)
        struct.pack_into("IIQ", attribute, 0, 0, _ATTRIBUTE_BYTES, event)
        struct.pack_into("Q", attribute, _FLAGS_AT, _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)
        libc, call = ctypes.CDLL(None, use_errno=True), _SYSCALL.get(platform.machine())
        if call is None:
            raise DeviceError(f"counting cycles is written for {' and '.join(_SYSCALL)}, this is {platform.machine()}")
        self._file = libc.syscall(call, ctypes.c_char_p(bytes(attribute)), pid, -1, -1, 0)
        if self._file < 0:
            why = os.strerror(ctypes.get_errno())
            raise DeviceError(f"this machine lets nobody count cycles ({why}); see kernel.perf_event_paranoid")

    def __enter__(self) -> CycleCounter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def during(self, run: Callable[[], object]) -> int:
        """Events while `run` runs."""
        ioctl(self._file, _RESET)
        ioctl(self._file, _ENABLE)
        run()
        ioctl(self._file, _DISABLE)
        return int(struct.unpack("Q", os.read(self._file, 8))[0])


def least(event: int, clocks: Mapping[str, timing.Clock]) -> dict[str, float]:
    """The event's smallest count for one call of each, over samples that are taken in turn."""
    repeats = {name: timing.calibrate(clock, SAMPLE_S)[0] for name, clock in clocks.items()}
    end, counts = time.monotonic() + SAMPLES_S * len(clocks), dict[str, float]()
    with CycleCounter(event) as counter:
        while not counts or time.monotonic() < end:
            for name, clock in clocks.items():
                count = counter.during(partial(clock, repeats[name])) / repeats[name]
                counts[name] = min(count, counts.get(name, count))
    return counts


def metaschedule(bout: Bout, peer: MetaSchedule, directory: Path) -> dict[str, Any]:
    """What MetaSchedule reached on the arrays in `directory`, where our result lies too: user cycles of a call of its
    best kernel and the seconds of its tuning; else the reason why there is none."""
    note = metaschedule_note(Rules(metaschedule=peer), bout)
    if "reason" in note:
        return note
    arena = ProcessArena(
        peer.command(bout.case.label, bout.batch, bout.threads), directory / "metaschedule.log", variables(bout.threads)
    )

    def ask(**request: Any) -> None:
        if "reason" in (row := arena.ask(request, ANSWER_S)):
            raise LookupError(row["reason"])

    def call(times: int) -> int:
        return counter.during(lambda: ask(op="call", times=times))

    try:
        ask(op="enter", directory=str(directory))
        if "reason" in (agreement := agreed(METASCHEDULE, directory)):
            return agreement
        with CycleCounter(CYCLES, arena.pid) as counter:
            a_call = max(1, min(call(2) for _ in range(REQUESTS)) - min(call(1) for _ in range(REQUESTS)))
            n = 1 + math.ceil(PEER_SAMPLE_CYCLES / a_call)
            end, ones, many = time.monotonic() + SAMPLES_S, list[int](), list[int]()
            while not many or time.monotonic() < end:
                ones.append(call(1))
                many.append(call(n))
    except (Lost, LookupError) as error:
        return {"reason": str(error)}
    finally:
        arena.close()
    return {"cycles": round((min(many) - min(ones)) / (n - 1)), "tuning_s": round(note["tuning_s"], 2)}


def peak() -> float:
    """Floating-point operations a cycle of a loop of nothing but multiply-adds."""
    clock, operations = multiplier(parse_target("cpu"), 1)
    return operations / least(CYCLES, {MULTIPLY: clock})[MULTIPLY]


def measure(
    case: BenchmarkCase, batch: int, trials: int, seed: int, peak_rate: float, peer: MetaSchedule | None = None
) -> dict[str, Any]:
    """One row: the case tuned, and what its best kernel takes; beside it PyTorch, where it is installed, and `peer`."""
    row: dict[str, Any] = {"case": case.label, "batch": batch, "trials": trials, "seed": seed}
    bout = Bout(case, batch, 1)
    dag, args = bout.built
    arrays = [aligned(array) for array in make_inputs(dag, seed, "normal").values()]
    request: dict[str, Any] = {"workload": case.workload, "shape": list(args.values()), "args": args, "threads": 1}
    with tempfile.TemporaryDirectory() as directory:
        request["database"] = database = Path(directory) / "records.db"
        answer = tune(
            case.workload, bout.wanted, trials=trials, database=database, seed=seed, timeout_s=TUNING_TIMEOUT_S
        )
        if "error" in answer:
            return row | {"error": answer["error"]["message"]}
        entered, result = enter_ours(request | {"record_id": answer["record_id"]}, arrays)
        theirs: dict[str, Any] = {}
        if peer is not None:
            for i, array in enumerate(arrays):
                np.save(Path(directory) / f"in{i}.npy", array)
            np.save(Path(directory) / f"{OURS}.npy", result)
            theirs = metaschedule(bout, peer, Path(directory))
    clocks = {name: entered[name] for name in (OURS, CALL)}
    if peers.has_torch():
        clocks[TORCH], _ = enter_peer(TORCH, request, arrays)
    cycles = {name: round(count) for name, count in least(CYCLES, clocks).items()}
    instructions = least(INSTRUCTIONS, {OURS: clocks[OURS]})[OURS]
    return row | {
        "cycles": cycles[OURS], "instructions": round(instructions), "flops": dag.flops,
        "share": round(dag.flops / cycles[OURS] / peak_rate, 4), "called": cycles[CALL], "torch": cycles.get(TORCH),
        "tuning_s": round(answer["wall_s"], 2), METASCHEDULE: theirs, "sketch": answer["sketch"],
        "values": answer["values"],
    }  # fmt: skip


def over_torch(row: Mapping[str, Any]) -> float | None:
    """What PyTorch takes over what our kernel does, both called from Python."""
    return row["torch"] / row["called"] if row.get("torch") else None


def over_metaschedule(row: Mapping[str, Any]) -> float | None:
    """What MetaSchedule's kernel takes over ours."""
    found = row.get(METASCHEDULE, {})
    return found["cycles"] / row["cycles"] if "cycles" in found else None


RATIOS = {TORCH: over_torch, METASCHEDULE: over_metaschedule}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "error" in row:
        return row["case"], str(row["batch"]), "-", "-", "-", "-", "-", row["error"]
    rate = row["flops"] / row["cycles"]
    figures = number(rate, 1), number(row["share"]), number(over_torch(row)), number(over_metaschedule(row))
    return row["case"], str(row["batch"]), f"{row['cycles']:,}", *figures, row["sketch"]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cycles", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"c2d:1, c2d, matmul:64x48x32 (default: {FAMILIES})")
    parser.add_argument("--trials", type=options.integer(1), default=64, metavar="N")
    parser.add_argument("--batch", type=options.integer(1), default=1, metavar="N")
    parser.add_argument("--seed", type=options.integer(0), default=0, metavar="S")
    parser.add_argument("--out", type=result_file, metavar="JSON", help="write the results there, after each case")
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON", help="an interpreter with TVM for MetaSchedule")
    asked = parser.parse_args()
    try:
        python = asked.peer_python
        peer = None if python is None else MetaSchedule.with_python(python, asked.trials, asked.seed)
        rate, rows = peak(), list[dict[str, Any]]()
        for case in parse_cases(",".join(asked.cases) or FAMILIES):
            rows.append(measure(case, asked.batch, asked.trials, asked.seed, rate, peer))
            print("  ".join(cells(rows[-1])), flush=True)
            if asked.out is not None:
                write_results(asked.out, {"flops_a_cycle": rate, "rows": rows})
    except AutoschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(table(("case", "N", "cycles", "flops a cycle", "share", *RATIOS, "sketch"), [cells(row) for row in rows]))
    for name, over in RATIOS.items():
        if ratios := [ratio for row in rows if (ratio := over(row)) is not None]:
            mean, least_of = geometric_mean(ratios), min(ratios)
            print(f"{name} over ours, {len(ratios)} cases: geometric mean {mean:.2f}, least {least_of:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
