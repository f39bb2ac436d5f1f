"""The steps of `run.sh`, in the order in which they are worth their time on a card, and what each must provide.

    name          seconds  what                                                                        module

The table is `STEPS`. A step is a module with three functions (`StepModule`). It runs in a process group of its own, for
faults of a device are sticky and some kernels never end; what it has yielded by then is kept.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from autosched.errors import UsageError

Row = dict[str, Any]


@dataclass(frozen=True)
class StepRequest:
    """What a step is asked for: to end within `seconds`.

    `is_dry`: there is no card; kernels run at tiny shapes on the simulator, and what needs PyTorch is left out.
    Files go to `out`. `words` are arguments for the scoreboard.
    """

    step: str
    seconds: float
    is_dry: bool
    out: Path
    words: tuple[str, ...] = ()


class StepModule(Protocol):
    def predict(self, request: StepRequest) -> str:
        """One line: what is expected to be seen. It is printed and stored before anything runs."""
        ...

    def measure(self, request: StepRequest) -> Iterator[tuple[str, Row]]:
        """(label, row) as soon as each is known, the most telling first; a row is JSON. May raise, may be killed."""
        ...

    def summary(self, rows: Mapping[str, Row]) -> str:
        """What was seen: lines of a table, or one line. Also of a part of the rows, or of none."""
        ...


@dataclass(frozen=True)
class CardStep:
    """A step that takes `seconds` at most. `is_open`: more time is of use to it."""

    name: str
    seconds: float
    what: str
    module: str
    is_open: bool = False

    def load(self) -> StepModule:
        return cast("StepModule", importlib.import_module(f"experiments.gpu.{self.module}"))


STEPS = (
    CardStep("facts", 45, "attributes, clocks idle and under load, bandwidths, launch latency, rates", "card_facts"),
    CardStep("instructions", 60, "every PTX instruction that the simulator knows, on the card", "instructions"),
    CardStep("ceilings", 60, "what PyTorch, cuBLAS and cuDNN reach", "ceilings"),
    CardStep("ladder", 75, "products on tensor cores in the forms that an emitter could choose", "ladder"),
    CardStep(
        "calibrate", 150, "candidates of all ranks of the draft, to fit the cost model to", "calibrate", is_open=True
    ),
    CardStep("sanitizer", 60, "compute-sanitizer on what failed in instructions and ladder", "sanitizer"),
    CardStep("counters", 60, "ncu on the best of the ladder", "counters"),
    CardStep("again", 80, "rows of a calibration timed beside PyTorch, under ncu and compute-sanitizer", "again"),
    CardStep("verify", 120, "all operators, random candidates of every sketch", "board", is_open=True),
    CardStep("tune", 300, "the cases tuned", "board", is_open=True),
    CardStep("contest", 400, "tuned cases beside PyTorch, torch.compile and Triton", "board", is_open=True),
    CardStep(
        "networks", 420, "whole networks beside PyTorch, eager, compiled and captured", "whole_networks", is_open=True
    ),
    CardStep("scoreboard", 540, "verify, tune and contest, case by case", "board", is_open=True),
)
BY_NAME: Mapping[str, CardStep] = {step.name: step for step in STEPS}
DEFAULT = ("scoreboard",)


def chosen(names: str) -> tuple[CardStep, ...]:
    """The steps of a list such as "facts,ladder", in its order. Raises UsageError."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in BY_NAME]
    if unknown or not wanted:
        raise UsageError(f"--steps takes names of {', '.join(BY_NAME)}, got {names!r}")
    return tuple(BY_NAME[name] for name in wanted)


def rows_of(out: Path, step: str) -> dict[str, Row]:
    """What an earlier step of a run in that folder has seen; nothing where there is none."""
    try:
        document = json.loads((out / "card.json").read_text(encoding="utf-8"))
        return dict(document["steps"][step]["rows"])
    except (OSError, ValueError, KeyError):
        return {}


def seconds_of(steps: tuple[CardStep, ...], left_s: float) -> float:
    """How long the first of `steps` may take of the `left_s` for all: its share where time is short or it is open."""
    first, wanted = steps[0], sum(step.seconds for step in steps)
    share = first.seconds * left_s / wanted
    return share if first.is_open or share < first.seconds else first.seconds


def step_table() -> str:
    """For the help: a line for each step."""
    return "\n".join(f"    {s.name:<13}{s.seconds:>5.0f} s  {s.what} ({s.module}.py)" for s in STEPS)
