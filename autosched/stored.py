"""What can be done with one stored candidate: show it, verify it, explain its speed, write it as files.

Its code is generated anew from the schedule steps of the record. A record of a user's own function needs that function
as `workload`: a database may come from elsewhere and must not name code to run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.device import Device, peak_gflops
from autosched.errors import TargetError, UsageError, VerificationError
from autosched.target import parse_target
from autosched.tune.definition import Definition, Workload, redefine

if TYPE_CHECKING:
    from autosched.codegen.source import KernelSource
    from autosched.ir.stmt import Func
    from autosched.measure import Measurement
    from autosched.roofline import Fact
    from autosched.runtime.tensors import ArraySpec
    from autosched.store import Record
    from autosched.te import ComputeDAG, Tensor

FORMS = ("steps", "ir", "llvm", "asm")


def show(
    record_id: int,
    db: Path | str | None = None,
    as_: str = "steps",
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str:
    """A stored candidate as text: schedule `steps` (one JSON array a line), loop nest (`ir`), `llvm` or `asm`.

    A record of a user's own function needs that function as `workload`, one of another machine its `target`.
    """
    if as_ not in FORMS:
        raise UsageError(f"a record is shown as {', '.join(FORMS)}, got {as_!r}")
    found = _read(record_id, db, workload, target, needs_device=as_ in ("llvm", "asm"))
    if as_ == "steps":
        return "\n".join(json.dumps(step) for step in json.loads(found.record.steps))
    if as_ == "ir":
        from autosched.ir.printer import func_text
        from autosched.lower import concretise

        return func_text(concretise(found.nest(), {})[0])
    source = found.source()
    if as_ == "llvm":
        return source.ir

    from autosched.runtime.jit import emit_assembly

    return emit_assembly(source.ir, found.device.target)


def verify(
    record_id: int,
    db: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
) -> Measurement:
    """Builds a stored candidate again, checks it on fresh data derived from `seed` and times it.

    Raises VerificationError if it fails in any way.
    """
    from autosched.measure import Failure, Job, Measurer, make_problem
    from autosched.measure.host import ScratchDirectory
    from autosched.tune.room import check_room

    found = _read(record_id, db, workload, target)
    problem, device = found.problem, found.device
    with ScratchDirectory() as scratch:
        check_room(problem.dag, scratch)
        data = make_problem(problem.dag, scratch, seed)
        with Measurer(data, device.target, device.threads) as measurer:
            (answer,) = measurer.measure([Job("record", found.source())])
    if isinstance(answer, Failure):
        raise VerificationError(f"record {record_id} ({problem.name}) failed with {answer.kind}: {answer.message}")
    return answer


def explain(
    record_id: int,
    db: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> Mapping[str, Fact]:
    """Why a stored candidate is as fast as it is: facts by name; a name that ends in `_s` is a time in seconds.

    Where the device is this machine, its peak and bandwidth are measured now, in about a second.
    """
    from autosched import roofline

    found = _read(record_id, db, workload, target)
    problem, device, seconds = found.problem, found.device, found.record.seconds
    n_bytes = roofline.compulsory_bytes(problem.dag)
    roof = None
    if device.target.runs_here:
        peak = peak_gflops(device, problem.dtype)
        roof = roofline.measure_roof(device.target, device.threads, n_bytes, peak)
    facts: dict[str, Fact] = {"workload": problem.name, "shape": ",".join(map(str, problem.shape))}
    facts |= roofline.roofline_facts(problem.dag.flops, n_bytes, seconds, roof)
    facts |= roofline.model_facts(found.nest(), device.target, device.threads)
    if seconds is not None:
        facts["predicted_over_measured"] = float(facts["predicted_s"]) / seconds
    return facts


def export(
    record_id: int,
    db: Path | str | None = None,
    kind: str = "so",
    out: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> list[Path]:
    """Writes a stored candidate as an `object`, a shared library (`so`) or a `c-header` at `out`; see `deploy`.

    Code comes with its header beside it. Returns what was written. The default names are those of the function,
    `autosched_<workload>_<record>`.
    """
    from autosched import deploy

    deploy.check_kind(kind)
    found = _read(record_id, db, workload, target)
    problem, device = found.problem, found.device
    name = f"{deploy.c_identifier(problem.name.rpartition(':')[2])}_{record_id}"
    title = f"{problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}, record {record_id} of autosched"
    kernel = deploy.Deployable(
        name, title, found.source(), device.target, specs(problem.dag.inputs), specs(problem.dag.outputs)
    )
    return deploy.write_files(kernel, kind, None if out is None else Path(out))


def specs(tensors: Sequence[Tensor]) -> tuple[ArraySpec, ...]:
    """What callers pass for `tensors`: the user's shapes, not those of the collapsed graph."""
    from autosched.runtime.tensors import ArraySpec

    return tuple(ArraySpec(t.name, t.public_shape, t.dtype) for t in tensors)


def stored_nest(record: Record, dag: ComputeDAG) -> Func:
    """The loop nest of a record's schedule of the (collapsed) `dag`."""
    from autosched.lower import lower
    from autosched.schedule import replay

    return lower(replay(dag, record.steps))


def stored_source(record: Record, dag: ComputeDAG, device: Device) -> KernelSource:
    """A record's code, generated anew from its steps."""
    from autosched.codegen import build_source

    return build_source(stored_nest(record, dag), {}, device.target, device.threads)


@dataclass(frozen=True)
class _Found:
    """A record with the problem it solves and the device it is for."""

    problem: Definition
    record: Record
    device: Device

    def nest(self) -> Func:
        from autosched.te.collapse import collapse

        return stored_nest(self.record, collapse(self.problem.dag))

    def source(self) -> KernelSource:
        from autosched.te.collapse import collapse

        return stored_source(self.record, collapse(self.problem.dag), self.device)


def _read(
    record_id: int, db: Path | str | None, workload: Workload | None, target: str | None, needs_device: bool = True
) -> _Found:
    """A record with what belongs to it. Checks that they belong together."""
    from autosched.store import Database

    with Database(db, create=False) as database:
        record = database.record(record_id)
        spec = database.workload(record.workload).spec
    problem = redefine(spec, workload)
    if problem.dag.content_hash != record.workload:
        raise UsageError(
            f"record {record_id} is of another workload than {problem.name} with the arguments stored for it"
        )
    device = Device(parse_target(target), record.threads)
    if needs_device and device.target.fingerprint != record.target:
        raise TargetError(
            f"record {record_id} is for {record.target}, this is {device.target.fingerprint}: name its target"
        )
    return _Found(problem, record, device)
