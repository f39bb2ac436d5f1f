"""Request to load an ONNX file on a processor: what the result depends on, and its key in the disk cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autosched.errors import StoreError
from autosched.executor.compile_options import CompileOptions
from autosched.executor.model_cache.file_digest import FileState, content_digest, file_state
from autosched.graph.graph import Array
from autosched.kernel.device import Device, find_device
from autosched.passes import VERIFY, debug_level
from autosched.runtime.data_files import default_path, key_path, named_path
from autosched.runtime.disk_cache import key_of
from autosched.runtime.versions import code_version
from autosched.target import parse_target

SUFFIX = ".onnx"


@dataclass(frozen=True)
class LoadRequest:
    """A file with the options of its load. `digest`: of its content in this `state`. `records`: the state of the record
    database, None if that was changed a moment ago. `key`: the key of the entry, which is valid for `records` only."""

    path: Path
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    options: CompileOptions
    device: Device
    state: FileState
    digest: str
    records: str | None
    key: str


def load_request(
    model: object, sizes: Mapping[str, int] | None, inputs: Mapping[str, npt.ArrayLike] | None, options: CompileOptions
) -> LoadRequest | None:
    """Return the request; None for a load that the cache does not serve: of anything but an ONNX file, for a GPU, with
    arguments or a file that will be refused, or while passes are verified and printed."""
    if not isinstance(model, (str, Path)) or Path(model).suffix.lower() != SUFFIX or debug_level() >= VERIFY:
        return None
    if options.simulate or not parse_target(options.target).runs_here:
        return None
    path, device = Path(model).absolute(), find_device(options.target, options.threads)
    try:
        fixed = {name: np.array(value) for name, value in (inputs or {}).items()}
        digest, state, database = content_digest(path), file_state(path), _database(options)
    except (OSError, StoreError, TypeError, ValueError, RuntimeError):
        return None
    sized = dict(sizes or {})
    is_usual = all(type(size) is int for size in sized.values()) and not any(x.dtype.hasobject for x in fixed.values())
    if state is None or not is_usual:
        return None
    arguments = {
        **asdict(options),
        "db": str(database),
        "sizes": sorted(sized.items()),
        "inputs": sorted((name, str(x.dtype), x.shape, _digest(x)) for name, x in fixed.items()),
    }
    key = key_of(
        "linked network", digest, json.dumps(arguments), repr(device), _importer(), np.__version__, *code_version()
    )
    records = "" if database is None else _database_state(database)
    return LoadRequest(path, sized, fixed, options, device, state, digest, records, key)


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _importer() -> str:
    """Return the state of the package onnx, whose definitions of operators the importer reads."""
    spec = find_spec("onnx")
    state = file_state(Path(spec.origin)) if spec is not None and spec.origin is not None else None
    return "" if state is None else state.text


def _database(options: CompileOptions) -> Path | None:
    """Return the path of the record database; None if records are not used. Raises StoreError."""
    if not options.records:
        return None
    return (default_path() if options.db is None else named_path(options.db)).absolute()


def _database_state(path: Path) -> str | None:
    """Return the state of a record database, with those of SQLite's log and of the key that records are signed with.

    None if one of them was changed a moment ago."""
    states = [file_state(each) for each in (path, path.with_name(f"{path.name}-wal"), key_path())]
    if any(state is not None and not state.is_settled for state in states):
        return None
    return "; ".join("" if state is None else state.text for state in states)
