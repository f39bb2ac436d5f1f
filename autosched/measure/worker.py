"""Worker process that builds, or runs and times, candidates: `python -m autosched.measure.worker PARENT_PID`.

Requests come on standard input, replies leave on standard output, both as `protocol` frames. Before anything else the
two are moved to other descriptors, so that generated code has an empty standard input and writes into the error log.
The worker dies with its parent (PDEATHSIG, end of input), writes no core file and has a limit on its memory; the parent
keeps the deadlines. It imports llvmlite, a runner also NumPy, and no other package.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from autosched.errors import DeviceError
from autosched.measure import protocol
from autosched.measure.backends import WORKERS
from autosched.measure.protocol import Done, Failed, Numbered, ProtocolError, Setup

_PR_SET_PDEATHSIG = 1
_MAX_FILE = 1 << 30  # bytes a worker may write into one file: an object, its log
_MAX_OPEN_FILES = 1024  # a GPU driver opens dozens for each device


def harden(parent: int) -> None:
    """Make this process die with its parent; forbid core files, bound the size of files. Its children die with its
    process group.
    """
    end_with(parent)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _MAX_FILE),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
    ):
        lower_limit(limit, value)


def end_with(parent: int) -> None:
    """Make this process end with the thread of its parent that has started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before prctl
        os._exit(1)


def lower_limit(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(limit, (value, value))


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the protocol's streams, moved away from descriptors 0 and 1."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb", buffering=0), os.fdopen(replies, "wb", buffering=0)


def requests(stream: BinaryIO, kinds: dict[str, type]) -> Iterator[Any]:
    """Yield messages until the end of input, each an instance of one of `kinds`. Raises ProtocolError."""
    frames = protocol.Frames()
    while True:
        body = frames.next()
        if body is not None:
            yield protocol.decode(body, kinds)
            continue
        data = stream.read(1 << 20)
        if not data:
            return
        frames.feed(data)


def serve(make_handler: Callable[[Setup], Callable[[Any], Numbered]], kinds: dict[str, type]) -> int:
    """Handle the requests, instances of `kinds`, until their end. `make_handler` takes the first one, Setup."""
    harden(int(sys.argv[1]))
    stream, out = take_pipes()
    incoming = requests(stream, kinds)
    setup = next(incoming, None)
    if not isinstance(setup, Setup):
        raise ProtocolError("the first message must be Setup")
    if WORKERS[setup.target.kind].has_limit:
        lower_limit(resource.RLIMIT_DATA, setup.memory_limit)
    try:
        handle = make_handler(setup)
    except DeviceError as error:  # no compiler for the device, for example
        send(out, Failed(setup.id, "device_lost", str(error)))
        return 0
    send(out, Done(setup.id))
    for message in incoming:
        send(out, handle(message))
    return 0


def send(out: BinaryIO, message: Numbered) -> None:
    """Write one frame."""
    data = memoryview(protocol.encode(message))
    while data:
        data = data[out.write(data) :]


def _candidate_handler(setup: Setup) -> Callable[[Any], Numbered]:
    os.environ["POCL_CACHE_DIR"] = os.path.abspath("pocl")  # in the scratch directory: candidates are built once
    workers = WORKERS[setup.target.kind]
    return (workers.runner if setup.role == "run" else workers.builder)(setup)


if __name__ == "__main__":
    raise SystemExit(serve(_candidate_handler, protocol.REQUESTS))
