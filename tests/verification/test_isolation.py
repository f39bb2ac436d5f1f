"""Networks whose machine code writes outside its memory, stops or raises: verifying them does not end this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autosched import api
from autosched.cli.main import main
from autosched.errors import DeviceError, UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.cpu_model import link
from autosched.executor.model import Model
from autosched.graph.steps import Group
from autosched.runtime import processes
from autosched.verification import isolation
from tests.graph import networks


@pytest.fixture
def model() -> Model:
    return compile_graph(networks.perceptron((3, 17, 17, 5)), threads=2)


def astray(model: Model, step: int) -> Model:
    """The network, whose plan has the result of one kernel a terabyte behind the arena."""
    made, memory = model.program.steps[step], model.program.memory
    assert isinstance(made, Group)
    offsets = {**memory.offsets, made.outputs[0]: 1 << 40}
    program = replace(model.program, memory=replace(memory, offsets=offsets))
    return link(model.original, program, model.device)


def test_a_plan_that_leads_outside_of_the_arena_is_a_result(model: Model) -> None:
    found = api.verify(astray(model, 1))
    assert not found.passed
    assert found.summary() == (
        "the process that ran the network died with signal 11 (SIGSEGV) in the kernel linear relu"
    )
    assert (found.outputs, found.kernels) == ({}, ())


def test_a_kernel_that_dies_by_itself_is_named(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it were compared."""
    right = model.run_step

    def run_step(number: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if number == 1:
            os.kill(os.getpid(), signal.SIGBUS)
        return right(number, arrays)

    monkeypatch.setattr(model, "run_step", run_step)
    found = api.verify(model)
    assert not found.passed
    assert found.death.endswith("died with signal 7 (SIGBUS) in the kernel linear relu")
    assert [kernel.step for kernel in found.kernels] == [0]
    assert set(found.outputs) == {"normal", "structured"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"died with signal 9 \(SIGKILL\)"),
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "was stopped by a signal"),
        (lambda: time.sleep(60), r"did not end within 0\.5 s"),
    ],
)
def test_a_process_that_is_lost_is_a_result(
    model: Model, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None], words: str
) -> None:
    monkeypatch.setattr(isolation, "RUN_S", 0.5 if "0" in words else 60.0)
    if "stopped" in words:
        monkeypatch.setattr(processes, "LOOK_S", 0.05)
    monkeypatch.setattr(type(model), "__call__", lambda *_: fault())
    found = api.verify(model)
    assert not found.passed
    assert found.death.startswith("the process that ran the network ")
    with pytest.raises(isolation.ProgramDied, match=words):
        isolation.results(model, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.inputs})


@pytest.mark.parametrize("error", [DeviceError("it stopped with code 3"), UsageError("no"), IndexError("row 9 of 4")])
def test_what_a_call_raises_is_raised_here(model: Model, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def call(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(model), "__call__", call)
    with pytest.raises(type(error), match=str(error)):
        api.verify(model)
    monkeypatch.setattr(type(model), "__call__", lambda *_: 1 // 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        api.verify(model)


def test_the_command_ends_with_a_sentence(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autosched.cli.network.arguments.load_network", lambda *_, **__: astray(model, 0))
    assert main(["verify", "net.asc"]) == 4
    assert "died with signal 11 (SIGSEGV) in the kernel linear relu" in capsys.readouterr().err
    assert main(["verify", "net.asc", "--json"]) == 4
    assert '"verified": false' in capsys.readouterr().out
