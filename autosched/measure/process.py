"""Worker processes as seen by their parent: spawned, sent requests with deadlines, killed with their process group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar
from weakref import WeakSet

from autosched.measure import protocol
from autosched.measure.protocol import Numbered, ProtocolError
from autosched.runtime.processes import StopWatch, end_group, is_stopped
from autosched.runtime.state import usable

# The environment variables that a worker inherits: search paths of programs, libraries and packages, and the locale.
_PLACES = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HOME", "TMPDIR", "PYTHONPYCACHEPREFIX",
    "CUDA_HOME", "CUDA_PATH", "OCL_ICD_VENDORS", "AUTOSCHED_DEVICE_SCRIPT",
)  # fmt: skip
_WORDS = (
    "XDG_CACHE_HOME", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "POCL_WORK_GROUP_METHOD",
    "AUTOSCHED_CUDA_DRIVER",
)  # fmt: skip
_SET = {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
_LOG_TAIL = 400  # the last characters of a dead worker's error log, which go into the message
_CHUNK = 1 << 16
_OVERSLEPT_S = 1.0  # seconds; if a poll is so late, this process was stopped itself
_START_S = 0.5  # seconds that the system may take to create a process
_MEMORY_SHARE = 0.75  # share of the machine's memory that one worker may use
# Signals that only other processes send: a user, a supervisor, or the system when memory is short.
_FROM_OUTSIDE = {
    int(getattr(signal, name))
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM")
}
_PIPE_BYTES = 1 << 20  # the largest size of a pipe that Linux grants every user


W = TypeVar("W", bound="Worker")
_living: WeakSet[Worker] = WeakSet()  # the workers of this process
_starting: set[Path] = set()  # error logs of workers that are being started


class WorkerError(Exception):
    """The worker cannot be used any more; `fault` is a class of `results.FAULTS`."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without OMP_* and other settings that would change measurements; this package
    stays importable.

    Relative paths are made absolute, as a worker has another working directory.
    """
    places = {name: _absolute_paths(environment[name]) for name in _PLACES if name in environment}
    words = {name: environment[name] for name in _WORDS if name in environment}
    package = str(Path(__file__).resolve().parents[2])
    path = [package, *(p for p in places.get("PYTHONPATH", "").split(os.pathsep) if p)]
    return {**places, **words, **_SET, "PYTHONPATH": os.pathsep.join(path)}


def _absolute_paths(places: str) -> str:
    """Return a list of paths with the existing ones made absolute; others may be names that a loader looks for."""
    parts = places.split(os.pathsep)
    return os.pathsep.join(os.path.abspath(part) if os.path.exists(part) else part for part in parts)


class Worker:
    """One worker process. Call `spawn` from a thread that lives as long as the worker must (see PDEATHSIG)."""

    module = "autosched.measure.worker"  # the module that the process runs
    replies = protocol.REPLIES

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._log = process, log
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        with contextlib.suppress(OSError):  # so that a whole source fits and this process need not wait
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._outgoing = memoryview(b"")
        self._frames = protocol.Frames()
        self._watch = StopWatch(process.pid)
        self._parent = os.getpid()
        self._next_id = 0
        self._seconds, self._was_extended = 0.0, False
        self._waiting_for = -1
        self.deadline = 0.0  # monotonic time at which the answer to the last request is due
        self.n_requests = 0
        _living.add(self)

    @classmethod
    def spawn(cls: type[W], directory: Path, log: Path) -> W:
        """Start a worker in its own session, with `directory` as its working directory and `log` as its error log."""
        with usable(log):
            stream = log.open("wb")
        _starting.add(log)
        try:
            return cls(cls._start(directory, stream), log)
        finally:
            _starting.discard(log)

    @classmethod
    def _start(cls, directory: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", cls.module, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                env=worker_environment(os.environ),
                start_new_session=True,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def waiting(self) -> bool:
        """Whether an answer is outstanding."""
        return self._waiting_for >= 0

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def request(self, message: Numbered, seconds: float) -> None:
        """Begin to send `message` (its id from `next_id`), whose answer is due in `seconds`. Never blocks.

        As much as fits into the pipe is sent at once, so that a starting worker imports its modules before it is
        polled.
        """
        self._outgoing = memoryview(protocol.encode(message))
        self._waiting_for = message.id
        self._seconds, self._was_extended = seconds, False
        self.deadline = time.monotonic() + seconds
        self._watch.restart()
        self.n_requests += 1
        self._write()

    @property
    def next_look(self) -> float:
        """The monotonic time at which `poll` must be called even if the worker writes nothing."""
        return min(self.deadline, self._watch.next_look)

    def descriptors(self) -> tuple[list[int], list[int]]:
        """Return the descriptors to wait for: (those to read from, those to write to)."""
        return [self._from], [self._to] if self._outgoing else []

    def poll(self) -> Numbered | None:
        """Send and receive without blocking; return the answer, one of `replies`, once it is complete, else None.

        Raises WorkerError, and kills the worker, if it died, broke the protocol, missed its deadline, or stays stopped
        by a signal.
        """
        try:
            self._write()
            alive = self._read()
            body = self._frames.next()
            if body is not None:
                reply: Numbered = protocol.decode(body, self.replies)
                if reply.id != self._waiting_for:
                    raise ProtocolError(f"an answer to request {reply.id} instead of {self._waiting_for}")
                self._waiting_for = -1
                return reply
        except ProtocolError as error:
            self.kill()
            raise WorkerError("protocol", f"the worker's answer was refused: {error}") from None
        if not alive:
            raise self._died()
        if self._watch.has_stopped():
            self.kill()
            raise WorkerError("killed", "the worker was stopped by a signal and did not go on")
        late_s = time.monotonic() - self.deadline
        if (
            late_s >= _OVERSLEPT_S and not self._was_extended
        ):  # Ctrl-Z or a paused container: the worker was stopped too
            self._was_extended = True
            self.deadline = time.monotonic() + self._seconds
        elif late_s >= 0.0:
            stopped = is_stopped(self.pid)
            self.kill()
            if stopped:
                raise WorkerError("killed", f"the worker was stopped and gave no answer within {self._seconds:.1f} s")
            raise WorkerError(
                "hang", f"the worker gave no answer within {self._seconds:.1f} s, the deadline, and was killed"
            )
        return None

    def ask(self, message: Numbered, seconds: float) -> Numbered:
        """Send a request and wait for its answer."""
        self.request(message, seconds)
        return self.answer()

    def answer(self) -> Numbered:
        """Wait for the answer to the last request. On any exception, Ctrl-C included, the worker is killed."""
        try:
            while True:
                reply = self.poll()
                if reply is not None:
                    return reply
                wait([self])
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Send SIGKILL to the whole process group and wait for the end of the process. May be called again."""
        end_group(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._outgoing, self._waiting_for = memoryview(b""), -1

    def _write(self) -> None:
        while self._outgoing:
            try:
                written = os.write(self._to, self._outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except BrokenPipeError:  # reading will show that it died
                self._outgoing = memoryview(b"")
                return
            self._outgoing = self._outgoing[written:]

    def _read(self) -> bool:
        """Receive what has arrived; return False at the end of the stream."""
        try:
            data = os.read(self._from, _CHUNK)
        except BlockingIOError:
            return True
        self._frames.feed(data)
        return bool(data)

    def _died(self) -> WorkerError:
        """Return the reason of the death of the process, whose output has ended."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return WorkerError("protocol", "the worker closed its output but went on running")
        self.kill()
        if -status in _FROM_OUTSIDE:
            hint = ", perhaps by the system for lack of memory" if -status == signal.SIGKILL else ""
            return WorkerError("killed", f"the worker was killed from outside by {_signal_name(-status)}{hint}")
        words = self._last_words()
        if "out of memory" in words.lower() or "MemoryError" in words:
            return WorkerError("out_of_memory", f"the worker ran out of memory{words}")
        if status >= 0:
            return WorkerError("crash", f"the worker left with exit code {status}{words}")
        return WorkerError("crash", f"the worker was killed by {_signal_name(-status)}{words}")

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as stream:
                stream.seek(max(0, self._log.stat().st_size - _LOG_TAIL))
                text = " ".join(stream.read().decode(errors="replace").split())
        except OSError:
            return ""
        return f": ...{text}" if text else ""


def kill_all() -> None:
    """Kill all workers of this process, also one that is being started. For a signal handler of a process that is about
    to end: takes no locks and waits for no process.
    """
    give_up = time.monotonic() + _START_S
    while True:
        for worker in list(_living):
            if worker._process.returncode is None and worker._parent == os.getpid():
                with contextlib.suppress(OSError):
                    os.killpg(worker.pid, signal.SIGKILL)
        if not _starting or time.monotonic() > give_up:
            return
        time.sleep(0.002)


def memory_limit() -> int:
    """Return the bytes that one worker may use."""
    return int(_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def wait(workers: Sequence[Worker], *, longest_s: float = float("inf")) -> None:
    """Wait until one of `workers` can be polled or reaches its deadline, or for `longest_s` seconds."""
    poller = select.poll()
    for worker in workers:
        to_read, to_write = worker.descriptors()
        for descriptor in to_read:
            poller.register(descriptor, select.POLLIN)
        for descriptor in to_write:
            poller.register(descriptor, select.POLLOUT)
    remaining = min(min(worker.next_look for worker in workers) - time.monotonic(), longest_s)
    # Milliseconds, rounded up, so that there is one wake-up at a deadline; without time left it does not sleep.
    poller.poll(0 if longest_s <= 0 else max(0.0, 1000 * remaining) + 1)
