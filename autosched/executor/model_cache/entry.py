"""Entries of the model cache: a network's link plan, its object files, and where its constants come from.

The facts of an entry are JSON:

    records    the state of the record database that the schedules were chosen by
    is_final   whether no kernel has the schedule of other sizes any more
    plan       the link plan
    objects    the lengths of the object files, which are the first bytes of the code
    files      external data: path from the ONNX file's folder on, and digest
    constants  the range of each constant: number of the file, offset, length

An entry that does not fit is a miss, and is written anew after the load.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.errors import GraphError, UsageError
from autosched.executor.model_cache.file_digest import content_digest, file_state
from autosched.executor.model_cache.file_ranges import FileConstants, FileRange, find_ranges
from autosched.executor.model_cache.request import LoadRequest
from autosched.runtime.disk_cache import LIMIT_BYTES, read_view, shrink, write
from autosched.runtime.linked_network import LinkedNetwork, link_network, link_plan_of
from autosched.tuner.memory_check import free_memory

if TYPE_CHECKING:
    from autosched.executor.model import Model

MAX_BYTES = LIMIT_BYTES // 8  # of an entry: networks whose passes compute more constants are not kept


@dataclass(frozen=True)
class CachedNetwork:
    """A network linked from an entry. `is_final`: whether no kernel has the schedule of other sizes. `external`: the
    files with external data, by their paths from the ONNX file's folder on, each with the digest of its content."""

    linked: LinkedNetwork
    is_final: bool
    external: tuple[tuple[str, str], ...]


class _Miss(Exception):
    """An entry that does not fit the request."""


def find_linked(request: LoadRequest) -> CachedNetwork | None:
    """Return the network of a request; None for a miss."""
    try:
        entry = read_view(request.key)
        return None if entry is None else _linked(request, *entry)
    except (_Miss, UsageError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError):
        return None


def _linked(request: LoadRequest, facts: dict[str, Any], code: memoryview) -> CachedNetwork:
    plan, external = link_plan_of(facts["plan"]), tuple((str(name), str(digest)) for name, digest in facts["files"])
    if request.records is None or facts["records"] != request.records:
        raise _Miss
    if any(content_digest(_external_path(request, name)) != digest for name, digest in external):
        raise _Miss
    if plan.call_bytes > free_memory():  # the ordinary load raises an error with the sizes
        raise _Miss
    ends = [0, *accumulate(facts["objects"])]
    objects = [bytes(code[begin:end]) for begin, end in pairwise(ends)]
    ranges = {name: FileRange(*numbers) for name, numbers in facts["constants"].items()}
    with ExitStack() as files:
        paths = [request.path, *(_external_path(request, name) for name, _ in external)]
        descriptors = [files.enter_context(path.open("rb")).fileno() for path in paths]
        states = [file_state(each) for each in descriptors]
        constants = FileConstants(ranges, descriptors, code[ends[-1] :])
        linked = link_network(plan, objects, constants, request.device.threads)
        if states[0] != request.state or [file_state(each) for each in descriptors] != states:
            raise _Miss
    return CachedNetwork(linked, facts["is_final"] is True, external)


def changed_file(request: LoadRequest, external: Sequence[tuple[str, str]]) -> Path | None:
    """Return the ONNX file or a file of its external data whose content has changed or cannot be read; None without
    one."""
    for path, digest in ((request.path, request.digest), *((_external_path(request, x), y) for x, y in external)):
        try:
            is_same = content_digest(path) == digest
        except OSError:
            is_same = False
        if not is_same:
            return path
    return None


def _external_path(request: LoadRequest, name: str) -> Path:
    return request.path.parent.resolve() / name


def keep_linked(request: LoadRequest, model: Model, is_final: bool) -> None:
    """Write the entry of a model. Nothing is written if a file has changed since, or cannot be written."""
    from autosched.executor.cpu_model import CpuModel, link_inputs
    from autosched.graph.mapped_arrays import GraphConstants

    if request.records is None or not isinstance(model, CpuModel):
        return
    plan, objects = link_inputs(model.original, model.program, model.device)
    constants = model.program.constants
    with suppress(GraphError, UsageError, OSError, ValueError), GraphConstants(constants):
        ranges, external, stored = find_ranges(request.path, {name: constants[name] for name in plan.weights.constants})
        folder = request.path.parent.resolve()
        facts = {
            "records": request.records,
            "is_final": is_final,
            "plan": asdict(plan),
            "objects": [len(each) for each in objects],
            "files": [(os.path.relpath(path, folder), content_digest(path)) for path in external],
            "constants": {name: astuple(each) for name, each in ranges.items()},
        }
        n_bytes = sum(len(each) for each in objects) + sum(array.nbytes for array in stored)
        if n_bytes <= MAX_BYTES and content_digest(request.path) == request.digest:
            write(request.key, facts, *objects, *(array.data for array in stored))
            shrink()
