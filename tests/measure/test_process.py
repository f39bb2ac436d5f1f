"""Workers that answer nonsense, and that no process or file outlives its owner."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autosched.errors import DeviceError, UsageError
from autosched.measure import Measurer, Problem, WorkerPool
from autosched.measure.host import ScratchDirectory, device_lock
from autosched.measure.process import Worker, WorkerError, worker_environment
from autosched.measure.protocol import Done, Drop
from autosched.runtime.state import state_directory
from autosched.target import parse_target

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fake_worker(directory: Path, program: str) -> Worker:
    """A worker process that runs `program` instead of ours."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, sys, time\ndef say(b): os.write(1, len(b).to_bytes(4, 'little') + b)\n{program}",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=directory,
        start_new_session=True,
        bufsize=0,
    )
    (directory / "log").touch()
    return Worker(process, directory / "log")


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("os.write(1, b'\\xff' * 8); time.sleep(9)", "protocol", "over the limit"),
        ("say(b'not json'); time.sleep(9)", "protocol", "not JSON"),
        ("say(b'[' * 100000); time.sleep(9)", "protocol", "not JSON"),
        ('say(b\'{"kind": "Done", "id": NaN}\'); time.sleep(9)', "protocol", "NaN is not allowed"),
        ('say(b\'{"kind": "Done", "id": 7}\'); time.sleep(9)', "protocol", "request 7 instead of 1"),
        ('say(b\'{"kind": "Done", "id": true}\'); time.sleep(9)', "protocol", "Done.id must be of type int"),
        ('say(b\'{"kind": "Build", "id": 1}\'); time.sleep(9)', "protocol", "not a message of kind"),
        ('say(b\'{"kind": "Done", "id": 1, "x": 1}\'); time.sleep(9)', "protocol", "exactly the fields"),
        ("os.write(1, b'\\x09\\x00'); os.close(1); time.sleep(9)", "protocol", "closed its output"),
        ("sys.exit(3)", "crash", "exit code 3"),
        ("os.kill(0, 9)", "killed", "from outside by SIGKILL, perhaps"),
        ("os.kill(0, 15)", "killed", "from outside by SIGTERM"),
        ("os.kill(0, 11)", "crash", "SIGSEGV"),
        ("import signal; os.kill(0, signal.SIGSTOP); time.sleep(9)", "killed", "was stopped"),
        ("time.sleep(9)", "hang", "deadline"),
    ],
)
def test_untrusted_answers(tmp_path: Path, program: str, kind: str, words: str) -> None:
    worker = fake_worker(tmp_path, program)
    with pytest.raises(WorkerError, match=words) as info:
        worker.ask(Drop(worker.next_id()), 0.5 if kind == "hang" or "stopped" in words else 8.0)
    assert info.value.fault == kind
    assert not worker.alive


def test_second_answer_is_refused(tmp_path: Path) -> None:
    worker = fake_worker(
        tmp_path, 'say(b\'{"kind": "Done", "id": 1}\'); say(b\'{"kind": "Done", "id": 1}\'); time.sleep(9)'
    )
    assert worker.ask(Drop(worker.next_id()), 8.0) == Done(1)
    with pytest.raises(WorkerError, match="request 1 instead of 2"):
        worker.ask(Drop(worker.next_id()), 8.0)


def test_request_is_on_its_way_before_anybody_polls(tmp_path: Path) -> None:
    """A worker that starts has its imports done while the tuner makes sketches."""
    worker = fake_worker(tmp_path, "got = os.read(0, 1 << 16); open('got', 'wb').write(got); os.rename('got', 'whole')")
    worker.request(Drop(worker.next_id()), 8.0)
    give_up = time.monotonic() + 8.0
    while not (tmp_path / "whole").exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert b'"Drop"' in (tmp_path / "whole").read_bytes()
    worker.kill()


@pytest.mark.parametrize("answer_s", [0.0, 1.6])
def test_a_tuner_that_stood_still_does_not_charge_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer_s: float
) -> None:
    """After Ctrl-Z the answer may be there, late; after the pause of a container the worker goes on where it was."""
    monkeypatch.setattr("autosched.measure.process._OVERSLEPT_S", 0.2)
    worker = fake_worker(tmp_path, f'time.sleep({answer_s}); say(b\'{{"kind": "Done", "id": 1}}\'); time.sleep(9)')
    worker.request(Drop(worker.next_id()), 0.8)
    time.sleep(1.1)
    assert worker.answer() == Done(1)
    worker.request(Drop(worker.next_id()), 0.3)
    time.sleep(0.6)
    with pytest.raises(WorkerError, match=r"no answer within 0\.3 s"):  # extended once, not for ever
        worker.answer()


def test_interrupt_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = fake_worker(tmp_path, "time.sleep(9)")

    def interrupt(_: list[Worker]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autosched.measure.process.wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.ask(Drop(worker.next_id()), 8.0)
    assert not worker.alive


def test_environment_is_scrubbed() -> None:
    """Where compiled modules are kept is known to workers too: they would compile NumPy at every start."""
    kept = {"PATH": "/bin", "PYTHONPYCACHEPREFIX": "/cache"}
    given = {**kept, "OMP_NUM_THREADS": "8", "LD_PRELOAD": "x.so", "PYTHONPATH": "/somewhere", "TOKEN": "x"}
    environment = worker_environment(given)
    assert set(environment) == {*kept, "PYTHONPATH", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"}
    assert environment.items() >= kept.items()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/somewhere"]


def test_relative_paths_mean_the_tuners_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has another one. A word that is no path stays as it is, even where a file has its name."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "C").touch()
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONPATH": "mine:/x", "TMPDIR": "mine", "OCL_ICD_VENDORS": "libpocl.so", "LANG": "C", "HOME": ""}
    environment = worker_environment(given)
    mine = str(tmp_path / "mine")
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), mine, "/x"]
    kept = {name: environment[name] for name in ("TMPDIR", "OCL_ICD_VENDORS", "LANG", "HOME")}
    assert kept == {"TMPDIR": mine, "OCL_ICD_VENDORS": "libpocl.so", "LANG": "C", "HOME": ""}


def running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def make_measurer(tmp_path: Path) -> Measurer:
    return Measurer(Problem((), (), tmp_path), WorkerPool(parse_target("cpu"), 1, 1))


def test_close_ends_processes_and_files(tmp_path: Path) -> None:
    with make_measurer(tmp_path) as measurer:
        pids = [worker.pid for worker in measurer._processes._workers]
        directory = measurer._processes.directory
        assert len(pids) == 2
        assert all(map(running, pids))
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not any(map(running, pids))
    assert not directory.exists()
    measurer.close()


@pytest.mark.parametrize("best_s", [None, 1e-3])
def test_deadlines_allow_for_checks_of_large_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best_s: float | None
) -> None:
    """A check of 201 MB takes 0.7 s on a quiet core."""
    with make_measurer(tmp_path) as measurer:
        small = measurer._deadline(best_s, calls=2)
        monkeypatch.setattr(Problem, "n_bytes", 201_000_000)
        assert measurer._deadline(best_s, calls=2) - small >= 4.0


def test_forgotten_measurer_is_closed(tmp_path: Path) -> None:
    measurer = make_measurer(tmp_path)
    pids = [worker.pid for worker in measurer._processes._workers]
    del measurer
    assert not any(map(running, pids))


def test_workers_die_with_a_killed_tuner(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from autosched.measure import *\n"
        "from autosched.target import parse_target\n"
        f"m = Measurer(Problem((), (), Path({str(tmp_path)!r})), WorkerPool(parse_target('cpu'), 1, 1))\n"
        "m._runners._current.answer()\n"
        "print(*(w.pid for w in m._processes._workers), flush=True); time.sleep(30)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tuner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True)
    assert tuner.stdout is not None
    pids = [int(word) for word in tuner.stdout.readline().split()]
    assert len(pids) == 2
    tuner.send_signal(signal.SIGKILL)
    tuner.wait()
    tuner.stdout.close()
    give_up = time.monotonic() + 5
    while any(map(running, pids)) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not any(map(running, pids))


def test_device_lock_is_exclusive(tmp_path: Path) -> None:
    with device_lock("cpu"):
        held = rf"another tuner, process {os.getpid()}, has held .*cpu\.lock"
        with pytest.raises(DeviceError, match=held), device_lock("cpu", wait_s=0.02):
            pass
        with device_lock("other", wait_s=0.0):
            pass
    with device_lock("cpu", wait_s=0.0):
        pass


def test_cache_directory_of_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "autosched").mkdir(mode=0o700)
    (tmp_path / "autosched").chmod(0o777)
    with pytest.raises(UsageError, match="nobody else can write"), device_lock("cpu"):
        pass


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "here"}, "home/.cache/autosched"),  # not absolute: XDG says to take no notice of it
        ({"XDG_CACHE_HOME": "~/here"}, "home/.cache/autosched"),
        ({"XDG_CACHE_HOME": ""}, "home/.cache/autosched"),
        ({"XDG_CACHE_HOME": "", "HOME": "home"}, "home/.cache/autosched"),
    ],
)
def test_state_directory_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": str(tmp_path / "home"), **variables}.items():
        monkeypatch.setenv(name, value)
    assert state_directory() == tmp_path / expected
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_cache_directory_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path) -> None:
    home = tmp_path / "autosched"
    home.mkdir(mode=0o700)
    for place in (home / "runs", home / "cpu.lock"):
        place.symlink_to(tmp_path / "nowhere" / "x")
    for start in (ScratchDirectory, device_lock("cpu").__enter__):
        with pytest.raises(UsageError, match=r"autosched/(runs|cpu.lock) cannot be used .*set XDG_CACHE_HOME"):
            start()
    (home / "runs").unlink()
    with ScratchDirectory() as scratch:
        shutil.rmtree(scratch)
        with pytest.raises(UsageError, match=r"a.log cannot be used \(No such file or directory\)"):
            Worker.spawn(scratch, scratch / "a.log")


def test_abandoned_directories_are_swept() -> None:
    with ScratchDirectory() as held:
        abandoned = held.parent / "dead"
        (abandoned / "sub").mkdir(parents=True)
        for made in (time.time() - 1000, time.time() + 3e8):  # of the future: the clock was ten years ahead
            (abandoned / "sub").mkdir(parents=True, exist_ok=True)
            for path in (held, abandoned):
                os.utime(path, (made, made))
            with ScratchDirectory():
                assert held.exists()
                assert not abandoned.exists()
    assert not held.exists()
