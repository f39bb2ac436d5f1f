"""Networks that are tuned while they run, by a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import DeviceError, RecordWarning, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.network_tuning import background
from autosched.runtime import processes
from tests.graph import networks


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def model() -> Model:
    return compile_graph(networks.perceptron(), threads=1)


def test_a_running_network_becomes_faster_between_two_calls(model: Model) -> None:
    spec = model.inputs[0]
    x = np.random.default_rng(0).standard_normal(spec.shape).astype(spec.dtype)
    want = model(x)
    net = at.tune_in_background(model, budget_s=1.0)
    np.testing.assert_array_equal(net(x), want)
    assert net.wait(100)
    np.testing.assert_allclose(net(x=x), want, rtol=1e-5, atol=1e-6)
    assert isinstance(net.model, Model)
    assert net.model is not model
    assert net.model.device == model.device
    assert at.load(networks.perceptron(), threads=1).inputs == net.model.inputs  # which finds records


def test_an_error_leaves_the_network_as_it_is(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Model:
        raise DeviceError("the device is lost")

    monkeypatch.setattr(background, "tune_in_process", fail)

    def tuned() -> Any:
        net = at.tune_in_background(model, budget_s=1.0)
        assert net.wait(10)
        return net

    with pytest.warns(RecordWarning, match="runs as it was: the device is lost"):
        net = tuned()
    assert net.model is model
    with pytest.raises(UsageError, match="budget_s is a number of seconds above 0, got -1"):
        at.tune_in_background(model, budget_s=-1)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_is_lost_leaves_the_network_as_it_is(
    model: Model, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Told by one sentence: nobody waits for ever for a process that somebody has stopped."""
    monkeypatch.setattr(processes, "LOOK_S", 0.1)
    spawn = subprocess.Popen

    def struck(command: list[str], **options: Any) -> Any:
        process = spawn(command, **options)
        if "autosched.network_tuning.background_worker" in command:
            os.kill(process.pid, number)
        return process

    monkeypatch.setattr(subprocess, "Popen", struck)
    with pytest.raises(DeviceError, match=r"^its process (was stopped by a signal|ended with -9)"):
        background.tune_in_process(model, 60.0)


def test_the_process_says_in_one_sentence_what_is_wrong(tmp_path: Path) -> None:
    words = [str(os.getpid()), tmp_path / "none.asc", tmp_path / "made.asc", "1", "1", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "autosched.network_tuning.background_worker", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith("none.asc cannot be read: No such file or directory")
    assert not list(tmp_path.glob("*.asc"))
