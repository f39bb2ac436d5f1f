"""Kernels of networks as object files: from the cache, or built by processes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from autosched.errors import InternalError, NoValidCandidate, SplitWarning, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.kernel import pool, pool_worker
from autosched.kernel.object_cache import find_object
from autosched.kernel.pool import BuildProcess, build_kernels
from autosched.kernel.spec import KernelObject, KernelSpec
from autosched.measure.process import Worker, WorkerError, memory_limit
from autosched.measure.process_pool import ProcessPool
from autosched.measure.protocol import Numbered, Setup
from autosched.planning.execution_plan import SplitGroup
from autosched.runtime import disk_cache, gate, jit, processes, versions
from autosched.target import parse_target
from autosched.tuner.workload_spec import WorkloadSpec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def chain(sizes: list[int]) -> Graph:
    """Products [3, a] x [a, b] one after the other: a kernel each, all different."""
    values, nodes, constants = [Value("x0", (3, sizes[0]), "float32")], [], {}
    for n, (a, b) in enumerate(itertools.pairwise(sizes)):
        constants[f"w{n}"] = np.random.default_rng(n).normal(size=(a, b)).astype("float32")
        values += [Value(f"w{n}", (a, b), "float32"), Value(f"x{n + 1}", (3, b), "float32")]
        nodes.append(Node("matmul", (f"x{n}", f"w{n}"), (f"x{n + 1}",)))
    return Graph(("x0",), (f"x{len(nodes)}",), tuple(nodes), {v.name: v for v in values}, constants)


def check(graph: Graph) -> None:
    x = np.random.default_rng(7).normal(size=graph.values["x0"].shape).astype("float32")
    want = interpret(graph, {"x0": x})[graph.outputs[0]]
    np.testing.assert_allclose(compile_graph(graph, threads=1)(x), want, rtol=1e-4, atol=1e-4)


def kernel_specs(graph: Graph) -> list[KernelSpec]:
    return [task.kernel_spec for task in compile_graph(graph, threads=1).tasks]


def refuse(*_: object) -> KernelObject:
    raise AssertionError("nothing is to be built")


@pytest.mark.parametrize("sizes", [[4, 5], [2, 3, 4, 5, 6]], ids=["here", "in processes"])
def test_kernels_are_built_once(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(sizes)
    check(graph)
    monkeypatch.setattr(pool_worker, "build_kernel", refuse)
    monkeypatch.setattr(BuildProcess, "_start", refuse)
    check(graph)


def test_processes_build_for_several_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    pool._SPARE.close()
    check(chain([2, 3, 4, 5, 6]))
    spare = pool._SPARE._pool
    assert spare is not None
    waiting = [*spare._idle]
    assert waiting
    for process in waiting:
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert next(line for line in limits.splitlines() if line.startswith("Max data size")).split()[3] == str(
            memory_limit()
        )
    check(chain([12, 13, 14, 15]))
    assert pool._SPARE._pool is spare
    assert {*waiting} <= {*spare._idle}
    assert len(spare._idle) <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("TMPDIR", "/elsewhere")  # another environment needs processes of its own
    another = pool._SPARE.take(spare.target)
    assert another is not spare
    assert not any(process.alive for process in waiting)
    assert not spare.directory.exists()
    another.close()


def test_a_process_that_built_kernels_compiles_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """All modules of a first load: the code generator of this process is not used."""
    compiled: list[str] = []
    compile_here = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda ir, *more: compiled.append(ir) or compile_here(ir, *more))
    for cached in (jit._pool, jit._bound_parallel, jit._engine, gate._gate):
        cached.cache_clear()
    pool._SPARE.close()
    check(chain([2, 3, 4, 5, 6]))
    assert compiled == []
    pool._SPARE.close()
    check(chain([32, 33]))
    assert len(compiled) == 1, "without a process the entry is compiled here"


def test_an_entry_is_compiled_here_where_the_process_is_lost() -> None:
    pool._SPARE.close()
    check(chain([2, 3, 4, 5, 6]))
    spare = pool._SPARE._pool
    assert spare is not None
    for process in spare._idle:
        process.kill()
    check(chain([42, 43]))


def test_processes_that_were_started_ahead_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    pool._SPARE.close()
    target = parse_target("cpu")
    pool.start_processes(target, 2 * pool.KERNELS_EACH - 1)  # one core is this process's
    spare = pool._SPARE._pool
    assert spare is not None
    (started,) = spare._workers
    check(chain([22, 23, 24, 25, 26]))
    assert pool._SPARE._pool is spare
    assert started in spare._idle, "it has built"
    pool._SPARE.close()
    assert not started.alive
    pool.start_processes(target, pool.KERNELS_EACH - 1)  # too few kernels
    assert pool._SPARE._pool is None


def test_networks_that_are_compiled_at_a_time_leave_one_pool() -> None:
    """Each has its own; the last one waits for more kernels, the others end with their files."""
    pool._SPARE.close()
    graphs = [chain([2, 3, 4, 5]), chain([7, 8, 9, 10])]
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(check, graphs)] == [None, None]
    spare = pool._SPARE._pool
    assert spare is not None
    assert [*spare.directory.parent.iterdir()] == [spare.directory]


def test_an_exit_handler_can_compile_networks() -> None:
    """Python ends its thread pools before them."""
    program = "import atexit; from tests.kernel.test_pool import *; atexit.register(lambda: check(chain([2, 3, 4, 5])))"
    done = processes.run_within(60.0, [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_import_nothing_from_a_directory_that_others_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "re.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(tmp_path)
    check(chain([2, 3, 4, 5]))


def test_other_code_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = kernel_specs(chain([4, 5]))
    others = [
        KernelSpec(made.workload, "llvm -mcpu=haswell", 1),
        KernelSpec(made.workload, made.target_text, 2),
        KernelSpec(made.workload, made.target_text, 1, "[]"),
        KernelSpec(WorkloadSpec(made.workload.text.replace("matmul", "other")), made.target_text, 1),
    ]
    assert len({made.key, *(other.key for other in others)}) == 5
    monkeypatch.setattr(versions, "source_digest", lambda: "another autosched")
    assert KernelSpec(made.workload, made.target_text, 1).key != made.key


def test_a_damaged_file_is_as_good_as_none() -> None:
    graph = chain([4, 5])
    (made,) = kernel_specs(graph)
    path = disk_cache.path_of(made.key)
    for damaged in (
        path.read_bytes()[:-1],
        b"",
        b"{}\n",
        b"[]\nx",
        path.read_bytes().replace(made.name.encode(), b"k"),
    ):
        path.write_bytes(damaged)
        assert find_object(made) is None
        check(graph)
        assert find_object(made) is not None


def test_the_cache_keeps_what_was_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (kernel_specs(chain(sizes))[0] for sizes in ([4, 5], [4, 6]))
    both = sum(path.stat().st_size for path in disk_cache.path_of(new.key).parent.iterdir())
    monkeypatch.setattr(disk_cache, "LIMIT_BYTES", both + disk_cache.path_of(new.key).stat().st_size // 2)
    (newest,) = kernel_specs(chain([4, 7]))
    assert [find_object(r) is not None for r in (old, new, newest)] == [False, True, True]


def starting(monkeypatch: pytest.MonkeyPatch, programs: list[str], deadline_s: float = 60.0) -> None:
    """The next build processes run these programs once they are ready, with a deadline; those after them are ours."""
    pool._SPARE.close()
    started, requested, left, replaced = BuildProcess._start, Worker.request, [*programs], set()

    def start(directory: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
        if not left:
            return started(directory, log)
        text = (
            "import os, signal, sys, time\ndef say(b): os.write(1, len(b).to_bytes(4, 'little') + b)\n"
            f"os.read(0, 1 << 16); say({DONE!r})\n{left.pop(0)}"
        )
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=pipe, stdout=pipe, start_new_session=True, bufsize=0
        )
        replaced.add(process.pid)
        return process

    def request(self: BuildProcess, message: Numbered, seconds: float) -> None:
        is_short = self.pid in replaced and not isinstance(message, Setup)
        requested(self, message, deadline_s if is_short else seconds)

    monkeypatch.setattr(BuildProcess, "_start", start)
    monkeypatch.setattr(BuildProcess, "request", request)


DONE = b'{"kind": "Done", "id": 1}'
ENDS = "os.kill(0, signal.SIGABRT)"  # as LLVM ends a process
STOPS = "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"


def test_a_process_that_ends_costs_its_candidate_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first process here ends at its first job, before it has answered."""
    asked = tmp_path / "asked"
    starting(monkeypatch, [f"open({str(asked)!r}, 'wb').write(os.read(0, 1 << 16)); {ENDS}"])
    check(chain([2, 3, 4, 5, 6]))
    assert b'"passed_over": 0' in asked.read_bytes()


def test_a_process_that_always_ends_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    starting(monkeypatch, [ENDS] * 50)
    with pytest.raises(NoValidCandidate, match=r"could compile the kernel of matmul, .* killed by SIGABRT"):
        compile_graph(chain([2, 3, 4, 5, 6]), threads=1)


@pytest.mark.parametrize("fault", [STOPS, "time.sleep(60)", "os.kill(0, 9)"], ids=["stops", "hangs", "is killed"])
def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    deadline_s = 0.3 if fault.startswith("time") else 60.0
    if fault == STOPS:
        monkeypatch.setattr(processes, "LOOK_S", 0.05)
    with monkeypatch.context() as patch:
        starting(patch, [fault], deadline_s)
        check(chain([2, 3, 4, 5, 6]))
    starting(monkeypatch, [fault] * 50, deadline_s)
    with pytest.raises(NoValidCandidate, match="no process could compile the kernel of matmul, the last time because"):
        compile_graph(chain([7, 8, 9, 10, 11]), threads=1)
    assert pool._SPARE._pool is None or not pool._SPARE._pool._idle


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_processes_that_are_struck_at_random_times(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """It ends in the right result, or in one sentence for a kernel that was struck twice."""
    monkeypatch.setattr(processes, "LOOK_S", 0.1)
    pool._SPARE.close()
    rng, left = random.Random(number), 3
    poll = ProcessPool._advance

    def advance(self: ProcessPool, process: Worker) -> Numbered | WorkerError | None:
        nonlocal left
        if left and self._busy[process] is not None and rng.random() < 0.5:
            left -= 1
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(process.pid, number)
        return poll(self, process)

    monkeypatch.setattr(ProcessPool, "_advance", advance)
    refusal = ""
    try:
        check(chain([3, 4, 5, 6, 7, 8]))
    except NoValidCandidate as error:
        refusal = str(error)
    assert refusal[:64] in ("", "no process could compile the kernel of matmul, the last time bec")
    assert left < 3


def test_what_a_process_cannot_make_it_says() -> None:
    broken = [
        KernelSpec(WorkloadSpec.of({"name": f"x{n}", "args": {}, "dtype": "float32", "graph": 1}), "cpu", 1)
        for n in range(4)
    ]
    with pytest.raises(UsageError, match="the description of a network's kernel cannot be understood"):
        build_kernels(broken)


def test_a_kernel_that_cannot_be_made_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no sketch were found for a product with what follows it."""
    made = pool_worker.build_kernel

    def only_small(given: KernelSpec, passed_over: int = 0) -> KernelObject:
        if len(given.request.problem.dag.stages) > 1:
            raise NoValidCandidate("too much for one kernel")
        return made(given, passed_over)

    monkeypatch.setattr(pool_worker, "build_kernel", only_small)
    graph = chain([4, 5])
    values = {**graph.values, "y": Value("y", (3, 5), "float32")}
    graph = Graph(graph.inputs, ("y",), (*graph.nodes, Node("relu", ("x1",), ("y",))), values, graph.constants)
    with pytest.warns(SplitWarning, match=r"matmul relu: each operator is its own kernel.*\(too much for one kernel\)"):
        model = compile_graph(graph, threads=1)
    assert [task.name for task in model.tasks] == ["matmul", "relu"]
    assert model.program.split == (SplitGroup("matmul relu", "too much for one kernel"),)
    with pytest.warns(SplitWarning):
        check(graph)


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        ('{"kind": "Bug", "id": 2, "traceback": "what it is"}', InternalError),
        ('{"kind": "Refused", "id": 2, "reason": "what it is"}', UsageError),
    ],
)
def test_what_is_no_matter_of_the_kernel_is_raised(
    monkeypatch: pytest.MonkeyPatch, answer: str, raised: type[Exception]
) -> None:
    """Bugs, and a cache that cannot be written to: no network is cut into parts for them."""
    starting(monkeypatch, [f"os.read(0, 1 << 16); say({answer.encode()!r})"] * 50)
    with pytest.raises(raised, match="what it is"):
        compile_graph(chain([2, 3, 4, 5, 6, 8]), threads=1)
