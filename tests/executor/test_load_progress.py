"""What is told while a network loads, and a load that the memory does not do for."""

from __future__ import annotations

import errno
import io
import logging
import os
import pty
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from autosched import api
from autosched.errors import UsageError
from autosched.graph.load_progress import LoadEvent, LoadLine
from autosched.tuner.memory_check import size_text
from tests.graph import networks
from tests.helpers import ROOT

STAGES = ["reading", "planning kernels", "packing weights"]


def stages(events: list[LoadEvent]) -> list[str]:
    return list(dict.fromkeys(event.stage for event in events))


def test_a_callback_hears_of_each_stage_and_each_kernel(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    events: list[LoadEvent] = []
    graph = networks.perceptron((3, 5, 7, 9, 11))
    api.load(graph, threads=1, records=False, progress=events.append, specialise="now")
    assert stages(events) == [*STAGES[:2], "building kernels", STAGES[2]]
    counts = [(event.done, event.of) for event in events if event.stage == "building kernels"]
    assert counts == sorted(counts)
    assert {of for _, of in counts} == {4}
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)


def test_the_logger_has_the_stages(caplog):
    with caplog.at_level(logging.INFO, logger="autosched"):
        api.load(networks.perceptron(), threads=1, records=False)
    said = [record.getMessage() for record in caplog.records if record.name == "autosched"]
    assert [text.split(": ")[1].split(" [")[0] for text in said[:2]] == STAGES[:2]
    assert said[-1].startswith("loaded network in ")


def test_nothing_is_printed_unless_it_is_wanted(capsys):
    api.load(networks.perceptron(), threads=1, records=False)
    assert capsys.readouterr() == ("", "")
    api.load(networks.perceptron(), threads=1, records=False, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" [")[0] for line in err.splitlines()] == [f"loading network: {stage}" for stage in STAGES]


class Terminal(io.StringIO):
    fileno: Any = None

    def isatty(self) -> bool:
        return True


def test_a_line_of_a_terminal_is_redrawn_and_gone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size((30, 5)))
    stream = Terminal()
    stream.fileno = lambda: 2
    line = LoadLine(stream)
    for event in (
        LoadEvent("a\x1bb", "reading", 0.0),
        LoadEvent("a", "building kernels", 1.0, 1, 9),
        LoadEvent("a", "building kernels", 1.01, 2, 9),
        LoadEvent("a", "building kernels", 2.0, 3, 9),
    ):
        line(event)
    line.close()
    drawn = stream.getvalue().split("\r\x1b[K")
    assert drawn == [
        "",
        "loading a?b: reading [0 s]",
        "loading a: building kernels 1",
        "loading a: building kernels 3",
        "",
    ]


def test_commands_show_it_on_a_terminal(tmp_path):
    api.load(networks.perceptron(), threads=1, records=False).save(tmp_path / "net.asc")
    command = [sys.executable, "-m", "autosched", "verify", str(tmp_path / "net.asc"), "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    ours, theirs = pty.openpty()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=True)
    os.close(theirs)
    told = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "loading net: reading" in told
    assert told.endswith("\r\x1b[K")
    assert b"loading" not in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("f4")),
        OSError(errno.ENOMEM, "no room"),
    ],
)
def test_a_load_without_memory_is_one_sentence_with_the_sizes(monkeypatch, cli: Any, tmp_path, error):
    def fails(*_: object) -> None:
        raise error

    graph = networks.perceptron()
    api.load(graph, threads=1, records=False).save(tmp_path / "net.asc")
    monkeypatch.setattr("autosched.executor.compile_graph.prepare_graph", fails)
    size = size_text(sum(array.nbytes for array in graph.constants.values()))
    with pytest.raises(UsageError, match=rf"not enough memory to load network.*: it has {size} of constants, and"):
        api.load(graph, threads=1)
    answer = cli("verify", tmp_path / "net.asc")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert f"in {tmp_path / 'net.asc'}, and " in answer.err
    monkeypatch.setattr(
        "autosched.executor.compile_graph.prepare_graph", lambda *_: (_ for _ in ()).throw(OSError(5, "gone"))
    )
    with pytest.raises(OSError, match="gone"):
        api.load(graph, threads=1)
