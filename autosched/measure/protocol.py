"""Messages between the tuner and its workers: length-prefixed JSON, checked field by field on both sides.

A frame is 4 bytes of little-endian length and that many bytes of UTF-8 JSON. The object has `kind`, which names one
of the dataclasses below, and exactly that class's fields. A worker that has run generated code may answer anything,
so everything else (unknown fields, wrong types, NaN, deep nesting, long frames) raises `ProtocolError`.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from autosched.codegen import Source
from autosched.runtime.gpu.compile import Resources
from autosched.runtime.spec import ArraySpec
from autosched.target import Target

S = TypeVar("S", bound=Source)
MAX_FRAME = 64 << 20
_PREFIX = 4


class ProtocolError(Exception):
    """A frame that is not one of our messages."""


class Numbered(Protocol):
    """A message: a dataclass with the number of its request."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> int: ...


@dataclass(frozen=True)
class Setup:
    """First message to a worker. `role` is "build" or "run"; `memory_limit` in bytes."""

    id: int
    role: str
    target: Target
    memory_limit: int


@dataclass(frozen=True)
class Build:
    """Compile `source` and write what a runner loads to the file `object_path`."""

    id: int
    source: Source
    object_path: str


@dataclass(frozen=True)
class LoadData:
    """Forget all kernels and data; read the data sets of the problem in `directory` into guarded buffers.

    `weights_in`: where kernels are to find their packed weights when they are timed."""

    id: int
    directory: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    weights_in: str


@dataclass(frozen=True)
class Hold:
    """Load the kernel of `source`, which was compiled into `object_path`, check it and keep it in `slot`."""

    id: int
    slot: int
    object_path: str
    source: Source


@dataclass(frozen=True)
class Measure:
    """Time the kernel of `slot`, check it once more. Times in seconds."""

    id: int
    slot: int
    floor_s: float
    best_s: float | None


@dataclass(frozen=True)
class Sample:
    """Take one sample of the kernel of `slot`, `measure.timing.fastest_sample` of `sample_s`, and check the result
    again.
    """

    id: int
    slot: int
    sample_s: float


@dataclass(frozen=True)
class Drop:
    """Forget all held kernels."""

    id: int


@dataclass(frozen=True)
class Canary:
    """Run the worker's own known-good kernel."""

    id: int


@dataclass(frozen=True)
class Peak:
    """Measure the peak of a pipe of the device: `runtime.gpu.peak.measure_gpu_peak`."""

    id: int
    pipe: str


@dataclass(frozen=True)
class Rate:
    """A peak in GFLOP/s; a multiply-add counts as two operations."""

    id: int
    gflops: float


@dataclass(frozen=True)
class Done:
    """The request was carried out."""

    id: int


@dataclass(frozen=True)
class Built:
    """A source was compiled. The resources of its kernels are empty if the compiler does not report them."""

    id: int
    resources: tuple[Resources, ...]


@dataclass(frozen=True)
class Samples:
    """Seconds of one call, one number for each sample; `check_s` is the part of the time that went into checking."""

    id: int
    samples: tuple[float, ...]
    early_stopped: bool
    check_s: float


@dataclass(frozen=True)
class Failed:
    """The request failed; `fault` is a class of `results.FAULTS`."""

    id: int
    fault: str
    message: str


Message: TypeAlias = (
    Setup | Build | LoadData | Hold | Measure | Sample | Drop | Canary | Peak | Done | Built | Samples | Rate | Failed
)
REQUESTS: dict[str, type] = {c.__name__: c for c in (Setup, Build, LoadData, Hold, Measure, Sample, Drop, Canary, Peak)}
REPLIES: dict[str, type] = {c.__name__: c for c in (Done, Built, Samples, Rate, Failed)}


def encode(message: Numbered) -> bytes:
    """Return the frame of a message. Raises ProtocolError if it is longer than MAX_FRAME."""
    body = json.dumps({"kind": type(message).__name__, **asdict(message)}, allow_nan=False).encode()
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a {type(message).__name__} message of {len(body)} bytes is over the limit {MAX_FRAME}")
    return len(body).to_bytes(_PREFIX, "little") + body


def decode(body: bytes, kinds: dict[str, type]) -> Any:
    """Return the message in `body`, an instance of one of `kinds`. Raises ProtocolError."""
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {str(error)[:100]}") from None
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or data["kind"] not in kinds:
        raise ProtocolError(f"not a message of kind {', '.join(kinds)}")
    name = data.pop("kind")
    return checked(data, kinds[name], name)


def source_as(cls: type[S], message: Build | Hold) -> S:
    """Return the source of a request as an instance of `cls`. Raises ProtocolError for a source of another class."""
    if not isinstance(message.source, cls):
        raise ProtocolError(f"a worker for {cls.__name__} got {type(message.source).__name__}")
    return message.source


class Frames:
    """A parser that cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the next complete body, or None. Raises ProtocolError for a length over the limit."""
        if len(self._buffer) < _PREFIX:
            return None
        length = int.from_bytes(self._buffer[:_PREFIX], "little")
        if length > MAX_FRAME:
            raise ProtocolError(f"a frame of {length} bytes is over the limit {MAX_FRAME}")
        if len(self._buffer) < _PREFIX + length:
            return None
        body = bytes(self._buffer[_PREFIX : _PREFIX + length])
        del self._buffer[: _PREFIX + length]
        return body


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not allowed")


@lru_cache(maxsize=64)
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def checked(data: Any, hint: Any, where: str) -> Any:
    """Return `data` as a value of the type `hint`: a dataclass, tuple[T, ...], tuple[T, U], T | U, str, int, float,
    bool. Raises ProtocolError for data of another type.
    """
    if isinstance(hint, type) and is_dataclass(hint):
        names = {f.name for f in fields(hint)}
        if not isinstance(data, dict) or set(data) != names:
            raise ProtocolError(f"{where} must have exactly the fields {', '.join(sorted(names))}")
        return hint(**{name: checked(data[name], _hints(hint)[name], f"{where}.{name}") for name in names})
    if get_origin(hint) is tuple:
        if not isinstance(data, list):
            raise ProtocolError(f"{where} must be a list")
        kinds = get_args(hint)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(data)
        if len(data) != len(kinds):
            raise ProtocolError(f"{where} must have {len(kinds)} items, got {len(data)}")
        return tuple(checked(item, kind, where) for item, kind in zip(data, kinds, strict=True))
    if isinstance(hint, types.UnionType):
        hints = get_args(hint)
        return None if data is None and types.NoneType in hints else checked(data, _member(data, hints), where)
    if hint is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return _finite(data, where)
    if type(data) is not hint:
        raise ProtocolError(f"{where} must be of type {hint.__name__}, got {type(data).__name__}")
    if hint is str and not data.isascii():
        _check_unicode(data, where)
    return data


def _member(data: Any, hints: tuple[Any, ...]) -> Any:
    """Return the type of a union that fits `data`: the dataclass with its fields, else the first one."""
    given = set(data) if isinstance(data, dict) else None
    return next((h for h in hints if is_dataclass(h) and {f.name for f in fields(h)} == given), hints[0])


def _check_unicode(text: str, where: str) -> None:
    """Raise ProtocolError for half of a surrogate pair: JSON allows it, but records and terminals do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"{where} is not Unicode") from None


def _finite(number: int | float, where: str) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ProtocolError(f"{where} is not a finite number")
    return value
