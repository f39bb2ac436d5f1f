"""Errors and warnings for users; errors have the exit code of the command line.

A message is one sentence: what, where, expected, got, what to do. Failures of candidates are not
errors: they are recorded data (see `measure`). Anything not derived from `AutoschedError` is a bug, `InternalError`
among them. Warnings report problems that stop nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class AutoschedError(Exception):
    """Base of all errors that are the input's or the machine's fault, not ours."""

    exit_code = 2


class UsageError(AutoschedError):
    """A wrong word, number or file on the command line or in a Python call."""


class ExpressionError(AutoschedError):
    """A tensor expression that autosched does not accept; the message names stage and expression."""


class GraphError(AutoschedError):
    """A network that autosched does not accept; the message names the node, or all operators that are unknown."""


class RefusedNodes(GraphError):
    """An ONNX model has nodes that are refused. `split`: the model at them, a `graph.onnx.split.ModelSplit`."""

    def __init__(self, message: str, split: Any) -> None:
        super().__init__(message)
        self.split = split


class UnknownSizes(GraphError):
    """An ONNX model has symbolic dimensions without a size."""


class OutOfRangeError(AutoschedError, IndexError):
    """An index of a call's data that is outside of the dimension that it indexes."""


def index_message(reader: str, index: int, low: int, high: int) -> str:
    """Return the message for an index that the operator `reader` uses and that is not in the range `low` to `high`."""
    return f"{reader}: the index {index} is out of range, which is {low} to {high}"


class ScheduleError(AutoschedError):
    """An illegal schedule step; raised before anything has changed."""


class TargetError(AutoschedError):
    """A target description that cannot be understood."""


class StoreError(AutoschedError):
    """A database of another program, too new or damaged, or a path that cannot be written."""


class NoValidCandidate(AutoschedError):
    """A search that ended without a verified candidate."""

    exit_code = 3


class VerificationError(AutoschedError):
    """A kernel whose result is outside the error bound."""

    exit_code = 4


class DeviceError(AutoschedError):
    """A device that is missing or not usable."""

    exit_code = 5


class Interrupted(AutoschedError):
    """Ctrl-C: everything measured so far is saved."""

    exit_code = 130


class InternalError(Exception):
    """A bug of autosched, noticed before it did harm: the message names the model and, where known, the node."""


@contextmanager
def locating_bugs(place: Callable[[Exception], str]) -> Iterator[None]:
    """Turn an exception that is neither the input's nor the machine's fault into an InternalError that begins with
    `place`, such as a model or a node.
    """
    try:
        yield
    except (AutoschedError, MemoryError, OSError):
        raise
    except InternalError as error:
        error.args = (f"{place(error)}: {error}",)
        raise
    except Exception as error:
        raise InternalError(f"{place(error)}: {type(error).__name__}: {error}") from error


class AutoschedWarning(UserWarning):
    """Base of all warnings: problems that stop nothing."""


class RecordWarning(AutoschedWarning):
    """A stored record is verified before use, or was skipped."""


class FallbackWarning(AutoschedWarning):
    """A network has operators without a rule, which another engine runs."""


class SizesWarning(AutoschedWarning):
    """A network whose sizes vary is right, but takes long at each new size: one program for all could not be made."""


class SplitWarning(AutoschedWarning):
    """A network is right, but has more kernels than it should: no code could be made for one of several operators."""
