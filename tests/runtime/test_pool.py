"""The thread pool: every task once, thread numbers in range, and no way to hang."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings

import numpy as np
import pytest

from autosched.errors import TargetError
from autosched.runtime import jit, peak
from autosched.runtime.pool import MAX_THREADS, bound_parallel_ir, exported_pool_ir, pool_ir
from autosched.target import parse_target
from tests.helpers import in_threads, python
from tests.runtime.regions import COUNT, MEET, NESTED, run

HOST = parse_target("cpu")


def _load(threads: int, ir: str = COUNT, entry: str = "count") -> jit.LoadedKernel:
    return jit.load_object(jit.compile_object(ir, HOST), entry, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 64, 1000])
def test_every_task_runs_once_in_each_region(threads: int, tasks: int) -> None:
    counters, ids = run(_load(threads), tasks, 50)
    assert (counters[:tasks] == 50).all()
    assert (counters[tasks:] == 0).all()
    assert ids.min() >= 0
    assert ids.max() < threads


def test_thousands_of_short_regions() -> None:
    counters, _ = run(_load(4), 4, 20_000)
    assert counters.tolist() == [20_000] * 4 + [0, 0]


def test_workers_that_slept_come_back() -> None:
    kernel = _load(2)
    for _ in range(20):
        threading.Event().wait(0.002)  # far beyond the spinning
        assert run(kernel, 8, 3)[0].tolist() == [3] * 8 + [0, 0]


def test_each_thread_begins_with_a_share_of_its_own() -> None:
    first = (ctypes.c_int64 * 2)(-1, -1)
    assert _load(2, MEET, "meet")(ctypes.addressof(first), 0) == 0
    assert list(first) == [0, 3]


def test_nested_regions_run_on_the_thread_that_meets_them() -> None:
    counters, _ = run(_load(3, NESTED, "nested"), tasks=5, regions=1, outer=12)
    assert counters.tolist() == [12] * 5 + [0, 0]


def test_concurrent_callers() -> None:
    kernels = [_load(threads) for threads in (1, 2, 3, 4)]
    failures: list[str] = []

    def work(kernel: jit.LoadedKernel) -> None:
        for _ in range(30):
            counters, ids = run(kernel, 6, 100)
            if counters.tolist() != [100] * 6 + [0, 0] or ids.max() >= kernel.threads:
                failures.append(f"{kernel.threads} threads: {counters}, {ids}")

    in_threads(work, kernels)
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_makes_its_own_workers() -> None:
    kernel = _load(2)
    run(kernel, 8, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        ok = run(kernel, 8, 100)[0].tolist() == [100] * 8 + [0, 0]
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(kernel, 8, 10)[0].tolist() == [10] * 8 + [0, 0]


def test_shutdown_and_again() -> None:
    shutdown = ctypes.CFUNCTYPE(None)(jit._pool()["autosched_pool_shutdown"])
    kernel = _load(3)
    for _ in range(5):
        assert run(kernel, 9, 20)[0].tolist() == [20] * 9 + [0, 0]
        shutdown()
        shutdown()


def test_threads_out_of_range_are_refused() -> None:
    code = jit.compile_object(COUNT, HOST)
    for threads in (0, -1, MAX_THREADS + 1):
        with pytest.raises(TargetError, match=str(MAX_THREADS)):
            jit.load_object(code, "count", threads)


def test_the_serial_pool_of_other_systems() -> None:
    pool = pool_ir(HOST, system="darwin") + bound_parallel_ir("autosched_parallel", 2)
    text = (pool + COUNT.split("\n", 2)[2]).replace("@autosched_", "@plain_")
    owner, addresses = jit.load_library(text, HOST, ("count",))
    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(addresses["count"])
    counters, ids = np.zeros(10, np.int64), np.ones(10, np.int64)
    args = (ctypes.c_int64 * 4)(counters.ctypes.data, ids.ctypes.data, 10, 5)
    assert kernel(ctypes.addressof(args), None, 1) == 0
    assert (counters == 5).all()
    assert (ids == 0).all()
    del owner


@pytest.mark.parametrize("name", ["haswell", "neoverse-n1"])
def test_the_pool_compiles_for_both_architectures(name: str) -> None:
    target = parse_target(f"llvm -mcpu={name}")
    assert jit.compile_object(pool_ir(target, system="linux"), target)[:4] == b"\x7fELF"
    assert jit.compile_object(exported_pool_ir(target, 4, system="linux"), target)[:4] == b"\x7fELF"


_CORES_OF_A_WORKER = """
import os, sys
from tests.runtime import test_pool
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
kernel, before = test_pool._load(2), set(os.listdir("/proc/self/task"))
test_pool.run(kernel, 8, 3)
(worker,) = set(os.listdir("/proc/self/task")) - before
print(len(os.sched_getaffinity(0)) - len(os.sched_getaffinity(int(worker))))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize("caller", ["free", "one"])
def test_a_worker_is_kept_away_from_its_callers_core_if_there_are_others(caller: str) -> None:
    answer = python("-c", _CORES_OF_A_WORKER, caller, check=True)
    assert int(answer.stdout) == int(caller == "free" and len(os.sched_getaffinity(0)) > 1)


_A_CALLER_THAT_MOVES = """
import os
from tests.runtime import test_pool
cores, kernel, before = os.sched_getaffinity(0), test_pool._load(2), set(os.listdir("/proc/self/task"))
test_pool.run(kernel, 8, 3)
(worker,) = set(os.listdir("/proc/self/task")) - before
for core in [*cores][:2] * 20:
    test_pool.run(kernel, 8, 3)  # its worker is awake, and elsewhere
    os.sched_setaffinity(0, {core})
    os.sched_setaffinity(0, cores)
    test_pool.run(kernel, 8, 3)
    print(core in os.sched_getaffinity(int(worker)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_worker_makes_room_for_a_caller_that_comes_to_its_core() -> None:
    answer = python("-c", _A_CALLER_THAT_MOVES, check=True)
    together = answer.stdout.split().count("True")  # the system may move the caller once more, now and then
    assert together < 10, answer.stdout


def test_the_process_ends_with_workers_alive() -> None:
    code = "from tests.runtime.test_pool import _load, run\nkernel = _load(3)\nprint(run(kernel, 30, 10)[0].sum())\n"
    done = python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "300"), done.stderr


def test_fork_join_is_measured() -> None:
    cost = peak.fork_join_seconds(2, HOST)
    print(f"fork-join of 2 threads: {1e6 * cost:.2f} us")
    assert cost >= 0.0


def test_an_exported_kernel_asks_for_the_tiles_that_it_may_use() -> None:
    sapphire, zen = (parse_target(f"llvm -mcpu={name}") for name in ("sapphirerapids", "znver4"))
    assert "llvm.global_ctors" in exported_pool_ir(sapphire, 2, system="linux")
    assert "llvm.global_ctors" not in exported_pool_ir(sapphire, 2, system="darwin")
    assert "llvm.global_ctors" not in exported_pool_ir(zen, 2, system="linux")
    assert jit.compile_object(exported_pool_ir(sapphire, 2, system="linux"), sapphire)[:4] == b"\x7fELF"
