"""Lookup of stored schedules: the fastest record of each kernel that this installation has verified.

Tasks are matched by the content hash of their computation. Hashing a spec is slow, so a spec that equals a stored one
has the stored hash; if the kernel is built anew, the hash is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from autosched.errors import AutoschedError, ScheduleError, StoreError
from autosched.executor.compile_graph import compile_graph, plan_graph
from autosched.executor.compile_options import CompileOptions
from autosched.executor.model import Model
from autosched.graph.graph import Graph
from autosched.kernel.object_cache import find_object
from autosched.kernel.spec import KernelSpec
from autosched.kernel.transfer import NearestSchedules
from autosched.kernel.trust import tell
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.extract_tasks import BY_MODEL, Choices
from autosched.planning.fusion_records import stored_fusion_decision
from autosched.store import Database, Record, default_path, named_path
from autosched.tuner.workload_spec import WorkloadSpec

MAX_REPORTED = 3  # skipped records that the warning names


@contextmanager
def stored_schedules(db: Path | str | None) -> Iterator[StoredSchedules | None]:
    """Open the schedules of the database `db` (default: the user's); None if there is no such file.

    At the end a RecordWarning names the records that were skipped because they no longer fit.
    """
    path = default_path() if db is None else named_path(db)
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        yield None
        return
    with Database(path, create=False) as database:
        stored = StoredSchedules(database)
        yield stored
    if stored.skipped:
        more = f"; and {len(stored.skipped) - MAX_REPORTED} more" if len(stored.skipped) > MAX_REPORTED else ""
        reasons = "; ".join(stored.skipped[:MAX_REPORTED])
        tell(f"stored records of the network's kernels were passed over ({reasons}{more})")


def compile_with_records(
    graph: Graph,
    target: str | None = "cpu",
    threads: int | None = None,
    choices: Choices = BY_MODEL,
    db: Path | str | None = None,
    *,
    simulate: bool = False,
) -> Model:
    """Compile the network with the schedules of `choices`, else with stored ones, else with the best by the analytic
    model. Raises what `compile_graph` raises, and StoreError for a file that is no database."""
    with stored_schedules(db) as stored:
        return compile_graph(graph, target, threads, _choices(stored, choices), simulate)


def plan_with_records(
    graph: Graph, target: str | None = "cpu", threads: int | None = None, choices: Choices = BY_MODEL
) -> NetworkProgram:
    """Return the execution plan that `compile_with_records` links with the user's records; the device may be absent."""
    with stored_schedules(None) as stored:
        return plan_graph(graph, target, threads, _choices(stored, choices))[0]


def _choices(stored: StoredSchedules | None, choices: Choices) -> Choices:
    """Return the given choices, completed by the stored ones."""
    if stored is None:
        return choices

    def choose_fusion(kernel_spec: KernelSpec) -> bool | None:
        is_fused = choices.is_fused(kernel_spec)
        return stored.is_fused(kernel_spec) if is_fused is None else is_fused

    return Choices(lambda kernel_specs: stored(choices.schedules(kernel_specs)), choose_fusion)


def compile_dynamic(graph: Graph, nearest: NearestSchedules, options: CompileOptions) -> Model:
    """Compile the network with stored schedules, else with schedules of similar sizes in `nearest` or stored (schedule
    transfer), else with the best by the analytic model."""
    target, threads, simulate = options.target, options.threads, options.simulate
    with stored_schedules(options.db) if options.records else nullcontext() as stored:
        if stored is None:
            return compile_graph(graph, target, threads, Choices(nearest, nearest=nearest), simulate)

        def choose(kernel_specs: Sequence[KernelSpec]) -> Sequence[KernelSpec]:
            exact = stored(kernel_specs)
            nearest.add(stored.transferable([kernel_spec for kernel_spec in exact if not kernel_spec.steps]))
            return nearest(exact)

        return compile_graph(graph, target, threads, Choices(choose, stored.is_fused, nearest), simulate)


@dataclass
class StoredSchedules:
    """Schedules and fusion choices of a database. `skipped`: records that do not fit, with the reason."""

    database: Database
    skipped: list[str] = field(default_factory=list)

    def __call__(self, kernel_specs: Sequence[KernelSpec]) -> tuple[KernelSpec, ...]:
        """Return the specifications, those without steps with the steps of their best record.

        A kernel whose weights are outside of the caches, and that has no record, takes the steps of the best record of
        the same kernel with cached weights.
        """
        exact = self._with_stored_steps(kernel_specs)
        cached = {r: replace(r, workload=r.workload.without_weight_residency()) for r in exact if not r.steps}
        cached = {r: other for r, other in cached.items() if other.workload != r.workload}
        stored = dict(zip(cached, self._with_stored_steps(list(cached.values())), strict=True))
        return tuple(replace(r, steps=stored[r].steps) if r in stored else r for r in exact)

    def is_fused(self, kernel_spec: KernelSpec) -> bool | None:
        """Return the recorded fusion decision; None without one."""
        return stored_fusion_decision(self.database, kernel_spec)

    def _with_stored_steps(self, kernel_specs: Sequence[KernelSpec]) -> tuple[KernelSpec, ...]:
        without_steps = [kernel_spec for kernel_spec in kernel_specs if not kernel_spec.steps]
        hashes = {kernel_spec: hash for kernel_spec in without_steps if (hash := self._hash(kernel_spec)) is not None}
        if not hashes:
            return tuple(kernel_specs)
        device = kernel_specs[0].device
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        return tuple(self._with_steps(r, best.get(hashes.get(r, ""), ())) for r in kernel_specs)

    def transferable(self, kernel_specs: Sequence[KernelSpec]) -> list[tuple[WorkloadSpec, str]]:
        """Return the stored specs that differ from those of `kernel_specs` in sizes alone, with the steps of their best
        verified records."""
        if not kernel_specs:
            return []
        structures, device = (
            {kernel_spec.workload.sized.structure for kernel_spec in kernel_specs},
            kernel_specs[0].device,
        )
        hashes = {spec: hash for spec, hash in self._stored_specs[0].items() if spec.sized.structure in structures}
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        verified = {name: records[0].steps for name, records in best.items() if records[0].verified}
        return [(spec, verified[hash]) for spec, hash in hashes.items() if hash in verified]

    def _with_steps(self, kernel_spec: KernelSpec, records: Sequence[Record]) -> KernelSpec:
        for record in records:
            if not record.verified:  # unverified records come last
                break
            with_steps = replace(kernel_spec, steps=record.steps)
            if find_object(with_steps) is not None:
                return with_steps
            try:
                _check_fits(with_steps, record)
            except AutoschedError as error:
                self.skipped.append(f"record {record.id}: {error}")
            else:
                return with_steps
        return kernel_spec

    @cached_property
    def _stored_specs(self) -> tuple[dict[WorkloadSpec, str], set[str]]:
        """The content hashes of the stored specs of networks' kernels, and the inputs of these specs."""
        hashes, inputs = dict[WorkloadSpec, str](), set[str]()
        for workload in self.database.workloads():
            with suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
                spec = WorkloadSpec.from_record(workload.spec)
                inputs.add(spec.inputs)
                hashes[spec] = workload.hash
        return hashes, inputs

    def _hash(self, kernel_spec: KernelSpec) -> str | None:
        """Return the content hash of a specification's computation; None if no record can have it."""
        hashes, inputs = self._stored_specs
        if (hash := hashes.get(kernel_spec.workload)) is not None:
            return hash
        # The same computation may be stored with the spec of other operators.
        return kernel_spec.request.problem.dag.content_hash if kernel_spec.workload.inputs in inputs else None


def _check_fits(kernel_spec: KernelSpec, record: Record) -> None:
    """Raise ScheduleError if the record's steps do not apply to the kernel."""
    from autosched.schedule import check_target, replay

    if kernel_spec.request.problem.dag.content_hash != record.workload:
        raise ScheduleError("what the network's operators compute has changed since")
    check_target(replay(kernel_spec.request.collapsed, record.steps), kernel_spec.device.target.kind)
