"""Operations on a stored record: show, verify, explain and export.

Code is generated anew from the schedule steps of the record. A record of a user's function needs that function as
`workload`: a database may come from elsewhere and must not name code to run.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.backends import BACKENDS, exports, forms
from autosched.errors import DeviceError, ScheduleError, StoreError, TargetError, UsageError, VerificationError
from autosched.ir.instructions.precision import EXACT
from autosched.ir.size import SIZE_CLASSES
from autosched.kernel.device import Device
from autosched.kernel.lookup import stored_source, stored_state
from autosched.kernel.request import Request, array_specs
from autosched.kernel.sizes.sized_kernel import compile_sizes
from autosched.kernel.trust import verify_here, warn_of_claims
from autosched.target import Target, parse_target
from autosched.tuner.definition import Workload, own_names, redefinitions
from autosched.tuner.options import WorkloadOptions

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.ir.stmt import Func
    from autosched.kernel.roofline import Fact
    from autosched.measure import Measurement
    from autosched.store import Record
    from autosched.tuner.definition import Definition


def show(
    record_id: int,
    db: Path | str | None = None,
    as_: str = "steps",
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str:
    """Return a stored candidate as text.

    `as_`: schedule `steps` (one JSON array a line), loop nest (`ir`), the nest after each of the `passes`, or code:
    `llvm` and `asm` for a processor, `cuda` and `opencl` for a GPU. `workload`: the function, if it is the user's own.
    `target`: the record's, if it is of another machine.
    """
    if as_ not in forms():
        raise UsageError(f"a record is shown as {', '.join(forms())}, got {as_!r}")
    kind = forms()[as_]
    stored = _read(record_id, db, workload, target, needs_device=kind is not None and not BACKENDS[kind].is_gpu)
    if kind is None:
        return _COMMON_TEXTS[as_](stored)
    source = stored.source_for(kind, f"shown as {as_}")
    if as_ != "asm":
        return source.text

    from autosched.runtime.jit import emit_assembly

    return emit_assembly(source.text, stored.device.target)


def show_variants(
    record_id: int,
    db: Path | str | None,
    sizes: Mapping[str, range | tuple[int, int]],
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str:
    """Return the variants of the kernel of a record's workload for ranges of its numbers, compiled for a size of each
    class, the record's own and the largest. Raises UsageError for a kernel of a network, and as `compile_sizes` does.
    """
    stored = _read(record_id, db, workload, target)
    data = json.loads(stored.problem.spec)
    if "graph" in data:
        raise UsageError(f"record {record_id} is of a network's kernel, whose sizes are those of the network")
    own: dict[str, int] = data["args"]
    options = WorkloadOptions(settings=own, dtype=data["dtype"] if workload is None else None, target=target or "cpu")
    options = replace(options, threads=stored.device.threads)
    kernel = compile_sizes(workload or str(data["name"]), options, sizes, db)
    for each in itertools.product(*(_some_of(allowed, own.get(name)) for name, allowed in kernel.ranges.items())):
        kernel.of(**dict(zip(kernel.ranges, each, strict=True)))
    return "\n\n".join(map(str, kernel.describe()))


def _some_of(allowed: range, own: int | None) -> list[int]:
    """Return sizes of a range: the first of each class, `own` and the last."""
    first = [next((n for n in allowed if n >= least), allowed[-1]) for least in SIZE_CLASSES]
    return sorted({*first, allowed[-1], *(n for n in (own,) if n in allowed and n is not None)})


def verify(
    record_id: int,
    db: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
) -> Measurement:
    """Build a stored candidate, check it on data drawn by `seed`, time it, and record the result.

    The record counts as verified by this installation. Raises VerificationError if it fails; it is recorded as a
    failure then, and `best` and `compile` no longer use it.
    """
    from autosched.measure import Failure

    number: object = seed
    if not isinstance(number, Integral) or int(number) < 0:
        raise UsageError(f"seed must be a whole number of at least 0, got {seed!r}")
    stored = _read(record_id, db, workload, target)
    stored.check_present()
    (answer,) = verify_here(stored.request, [(stored.record, stored.source())], db, int(seed))
    if isinstance(answer, Failure):
        raise VerificationError(
            f"record {record_id} ({stored.problem.name}) failed with {answer.kind}: {answer.message}"
        )
    return answer


def explain(
    record_id: int, db: Path | str | None = None, *, workload: Workload | None = None, target: str | None = None
) -> Mapping[str, Fact]:
    """Return facts on the speed of a stored candidate by name; names that end in `_s` are seconds.

    If the device is in this machine, its peak and bandwidth are measured, which takes about a second.
    """
    from autosched.kernel import roofline
    from autosched.schedule import largest_tile, steps_from_json
    from autosched.te.rewrites.precision import allowed_precision

    stored = _read(record_id, db, workload, target)
    problem, device, seconds = stored.problem, stored.device, stored.record.seconds
    n_bytes = roofline.compulsory_bytes(problem.dag)
    pipe = device.hardware.pipe(stored.source, problem.dtype)
    roof = device.hardware.roof(device, n_bytes, pipe)  # None for an absent device
    facts: dict[str, Fact] = {"workload": problem.name, "shape": ",".join(map(str, problem.shape))}
    if problem.dag.weights:
        where = f" with them in the {place}" if (place := problem.dag.weights_in) else ""
        facts["weights"] = f"{', '.join(problem.dag.weights)}, prepare_graph once, ahead of the time measured{where}"
    if m := largest_tile(steps_from_json(stored.record.steps)):
        facts["winograd"] = f"F({m} x {m}, 3 x 3), with its larger error; rates count the direct form's operations"
    elif roof is not None and seconds is not None:
        roof = roof.over(problem.dag.flops, n_bytes, seconds)
    if roof is not None and roof.flops:
        facts["pipe"] = pipe
    if (precision := allowed_precision(problem.dag)) != EXACT:
        facts["precision"] = f"products by {precision}, with its larger error"
    facts |= roofline.roofline_facts(problem.dag.flops, n_bytes, seconds, roof)
    facts |= roofline.model_facts(stored.nest(), device.target, device.threads)
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
    """Write a stored candidate to `out`, with its header, and return the files; see `export.kernel`.

    `kind`: for a processor an `object`, a shared library (`so`) or a `c-header`, for a GPU `cuda` or `opencl` source or
    a `cubin`. The default name is that of the function, `autosched_<workload>_<record>`. A record that this
    installation has not verified is verified first. Raises VerificationError for a failed record, DeviceError for an
    unverified one whose device is absent.
    """
    from autosched.artifacts import kernel as deploy
    from autosched.artifacts.c_interface import c_identifier
    from autosched.store import named_path

    deploy.check_kind(kind)
    path = None if out is None else named_path(out)
    code_of = exports()[kind]
    stored = _read(record_id, db, workload, target, needs_device=not BACKENDS[code_of].is_gpu)
    problem, device = stored.problem, stored.device
    name = f"{c_identifier(problem.name.rpartition(':')[2])}_{record_id}"
    source = stored.source_for(code_of, f"exported as {kind}")
    stored.check_verified(db)
    title = f"{problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}, record {record_id} of autosched"
    kernel = deploy.Deployable(
        name,
        title,
        source,
        device.target,
        array_specs(problem.dag.inputs),
        array_specs(problem.dag.outputs),
        problem.dag.weights,
    )
    return deploy.write_files(kernel, kind, path)


def _steps_text(stored: _StoredCandidate) -> str:
    return "\n".join(json.dumps(step) for step in json.loads(stored.record.steps))


def _nest_text(stored: _StoredCandidate) -> str:
    from autosched.ir.printer import func_text
    from autosched.lower import concretise

    return func_text(concretise(stored.nest(), {})[0])


def _passes_text(stored: _StoredCandidate) -> str:
    """Return stage graph and loop nest after each pass, the plan of register tiles of a nest for a processor last.

    Passes that change nothing have only their names.
    """
    from autosched.ir.printer import func_text
    from autosched.lower import concretise
    from autosched.lower.register_tiles.plan import tiles_text
    from autosched.passes import report
    from autosched.te.rewrites.collapse import collapse
    from autosched.te.text import dag_text

    texts: list[str] = []
    collapse(stored.problem.dag, report(texts, dag_text))
    nest, simplify = concretise(stored.nest(), {}, report(texts, func_text))
    if not stored.device.target.backend.is_gpu:
        texts.append(f"== register tiles\n{tiles_text(nest, simplify, stored.device.target)}")
    return "\n".join(texts)


_COMMON_TEXTS: dict[str, Callable[[_StoredCandidate], str]] = {
    "steps": _steps_text,
    "ir": _nest_text,
    "passes": _passes_text,
}


@dataclass(frozen=True)
class _StoredCandidate:
    """A record and its request: workload and device."""

    record: Record
    request: Request

    @property
    def problem(self) -> Definition:
        return self.request.problem

    @property
    def device(self) -> Device:
        return self.request.device

    def nest(self) -> Func:
        from autosched.lower import lower

        return lower(stored_state(self.record, self.request))

    def source(self) -> Source:
        return stored_source(self.record, self.request)

    def source_for(self, kind: str, purpose: str) -> Source:
        """Generate code for a kind of target; a GPU's schedule gives code in each language for GPUs.

        Raises UsageError if one of record and code is for a processor and the other for a GPU.
        """
        target = self.device.target
        if target.backend.is_gpu and not BACKENDS[kind].is_gpu:
            raise UsageError(
                f"record {self.record.id} is for {target.kind}, so it cannot be {purpose}; {target.kind} can"
            )
        if BACKENDS[kind].is_gpu and not target.backend.is_gpu:
            raise UsageError(
                f"record {self.record.id} is a schedule for a processor, which has no blocks of threads: it has no "
                f"code in {kind}; tune with --target {kind}"
            )
        return stored_source(self.record, self.request, replace(target, kind=kind))

    def check_present(self) -> None:
        """Raise DeviceError if this machine does not have the record's device."""
        self.device.hardware.check_present(self.device.target)

    def check_verified(self, db: Path | str | None) -> None:
        """Verify the record in a worker if this installation has not. Raises VerificationError, DeviceError."""
        from autosched.measure import Failure
        from autosched.store import command

        record, failure = self.record, None
        if not record.verified:
            try:
                self.check_present()
            except DeviceError as error:
                raise DeviceError(
                    f"record {record.id} is from elsewhere and can be verified only there: run "
                    f"`{command(f'verify {record.id}', db)}` and the export on that machine ({error})"
                ) from error
            warn_of_claims([record])
            (answer,) = verify_here(self.request, [(record, self.source())], db)
            failure = answer if isinstance(answer, Failure) else None
        elif record.failure is not None:
            failure = Failure(str(record.id), record.failure, record.message)
        if failure is not None:
            raise VerificationError(
                f"record {record.id} failed with {failure.kind}: {failure.message}; "
                f"`{command('best', db)}` lists others"
            )


def _read(
    record_id: int, db: Path | str | None, workload: Workload | None, target: str | None, needs_device: bool = True
) -> _StoredCandidate:
    """Read a record with its workload and device, and check that they fit. A GPU's record contains its target."""
    from autosched.store import Database

    with Database(db, create=False) as database:
        record = database.record(record_id)
        spec = database.workload(record.workload).spec
        gpu = _gpu_target(database.targets().get(record.target))
    problems = redefinitions(spec, workload)
    problem = problems[0]
    problems = [p for p in problems if p.dag.content_hash == record.workload]
    if not problems:
        raise UsageError(
            f"record {record_id} is of another workload than {problem.name} with the arguments stored for it: "
            "it is not the same function, or has changed since; tune it again"
        )
    device = Device(gpu or parse_target(target), record.threads)
    if needs_device and device.target.fingerprint != record.target:
        raise TargetError(
            f"record {record_id} is for {record.target}, this is {device.target.fingerprint}: name its target"
        )
    requests = [Request(p, device) for p in problems]
    fitting = [request for request in requests if _has_stages(record, request)]
    if not fitting and workload is None and (others := own_names(spec)):
        raise UsageError(
            f"record {record_id} was found for a function whose stages are called otherwise than those of "
            f"{problems[0].name}: give it as workload (--workload {others[0]})"
        )
    return _StoredCandidate(record, (fitting or requests)[0])


def _has_stages(record: Record, request: Request) -> bool:
    """Return whether the stages of a record's schedule have the names of the workload's stages."""
    try:
        stored_state(record, request)
    except ScheduleError:
        return False
    return True


def _gpu_target(stored: str | None) -> Target | None:
    """Return the target of a stored description if it is a GPU's, else None. Raises StoreError for a damaged one."""
    from autosched.measure.protocol import ProtocolError, checked

    try:
        data = json.loads(stored or "null")
        if not isinstance(data, dict) or data.get("gpu") is None:
            return None
        target = checked(data, Target, "target")
    except (ValueError, RecursionError, ProtocolError) as error:
        raise StoreError(f"the stored description of the record's device is damaged: {error}") from error
    assert isinstance(target, Target)
    return target
