"""Archive of a network: one file of data and text, without code. Kernels are compiled where the archive is loaded.

It holds the graph as it was imported, its constants, the schedule of each tuned task, and each fusion decision.
Schedules and decisions apply to the processor and the number of threads that they were measured with; elsewhere the
analytic model chooses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autosched.errors import AutoschedWarning, GraphError, ScheduleError, UsageError
from autosched.graph.file_formats import ARCHIVE
from autosched.graph.graph import Graph
from autosched.graph.saved import DIGEST, load_saved, save_graph
from autosched.kernel.device import Device
from autosched.kernel.spec import KernelSpec
from autosched.kernel.trust import warn_user
from autosched.planning.extract_tasks import Choices, NetworkTask

_VERSIONS = "1", "2"  # of an archive without loops, which older versions of autosched read, and of one with loops


def save_archive(
    path: Path, graph: Graph, tasks: tuple[NetworkTask, ...], is_fused: Mapping[KernelSpec, bool], device: Device
) -> None:
    """Write a graph with the schedules of `tasks` and fusion decisions. Raises UsageError for an unwritable path."""
    if path.suffix != ARCHIVE:
        raise UsageError(f"a network is saved as a file *{ARCHIVE}, got {path}")
    steps = {_hash(task.kernel_spec): task.kernel_spec.steps for task in tasks if task.kernel_spec.steps}
    facts = {
        "autosched": _VERSIONS[any(node.body is not None for node in graph.nodes)],
        "target": device.target.fingerprint,
        "threads": str(device.threads),
        "schedules": json.dumps(steps, sort_keys=True),
        "joined": json.dumps({_hash(kernel_spec): fused for kernel_spec, fused in is_fused.items()}, sort_keys=True),
    }
    try:
        save_graph(path, graph, facts)
    except OSError as error:
        raise UsageError(f"the network cannot be saved as {path}: {error.strerror or error}") from error


def load_archive(path: Path) -> tuple[Graph, Choices]:
    """Return the graph with its schedules and fusion decisions. Raises GraphError for a file that is no archive."""
    graph, facts = load_saved(path)
    if facts.get("autosched") not in _VERSIONS:
        raise GraphError(
            f"{path} is an archive of version {facts.get('autosched')}, this autosched reads {' and '.join(_VERSIONS)}"
        )
    if DIGEST not in facts:
        warn_user(
            f"{path} has no digest, so that nobody can tell whether it is as it was written: it comes from an older "
            "autosched or from another program; save the network again",
            AutoschedWarning,
        )
    try:
        steps: Mapping[str, str] = {str(k): str(v) for k, v in json.loads(facts["schedules"]).items()}
        fused = {str(k): bool(v) for k, v in json.loads(facts.get("joined", "{}")).items()}
        threads = int(facts["threads"])
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise GraphError(f"{path} is damaged: its schedules cannot be read ({error})") from error

    def schedule(kernel_spec: KernelSpec) -> KernelSpec:
        if (stored := steps.get(_hash(kernel_spec))) is None:
            return kernel_spec
        try:
            kernel_spec.request.replay(stored)
        except ScheduleError as error:
            warn_user(f"a schedule in {path} does not fit this version of autosched ({error}): another one is used")
            return kernel_spec
        return replace(kernel_spec, steps=stored)

    def choose(kernel_specs: Sequence[KernelSpec]) -> list[KernelSpec]:
        here = {(kernel_spec.device.target.fingerprint, kernel_spec.threads) for kernel_spec in kernel_specs}
        archived = (facts.get("target"), threads)
        if not steps or here <= {archived}:
            return [schedule(kernel_spec) for kernel_spec in kernel_specs]
        warn_user(
            f"the schedules in {path} are for {archived[0]} and {threads} thread(s), these kernels for "
            f"{' and '.join(f'{target} and {n}' for target, n in sorted(here))}: the analytic model chooses others"
        )
        return list(kernel_specs)

    def is_fused(kernel_spec: KernelSpec) -> bool | None:
        is_same_device = (kernel_spec.device.target.fingerprint, kernel_spec.threads) == (facts.get("target"), threads)
        return fused.get(_hash(kernel_spec)) if is_same_device else None

    return graph, Choices(choose, is_fused)


def _hash(kernel_spec: KernelSpec) -> str:
    return hashlib.sha256(kernel_spec.workload.without_weight_residency().text.encode()).hexdigest()[:40]
