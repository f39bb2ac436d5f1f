"""What can be done with one stored candidate: show it, verify it, explain its speed, write it as files.

Its code is generated anew from the schedule steps of the record. A record of a user's own function needs that function
as `workload`: a database may come from elsewhere and must not name code to run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autosched.backends import BACKENDS, exports, forms
from autosched.errors import (
    AutoschedError,
    DeviceError,
    ScheduleError,
    StoreError,
    TargetError,
    UsageError,
    VerificationError,
)
from autosched.ir.instructions.precision import EXACT
from autosched.kernel.device import Device
from autosched.kernel.request import Request, specs
from autosched.kernel.trust import tell, tell_of_claims, verify_here
from autosched.target import Target, parse_target
from autosched.tuner.definition import Workload, own_names, redefinitions

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.ir.stmt import Func
    from autosched.kernel.roofline import Fact
    from autosched.measure import Measurement
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.schedule import State
    from autosched.store import Record
    from autosched.tuner.definition import Definition

    Passed: TypeAlias = dict[int, str]  # why records were passed over, by their numbers

CLAIMS_AT_ONCE = 4  # are verified together; the fastest of them is taken
CLAIMS_S = 60.0  # no more are begun after this
REPORTED = 3  # records that were passed over are named
REASON_LENGTH = 160


def show(
    record_id: int,
    db: Path | str | None = None,
    as_: str = "steps",
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str:
    """A stored candidate as text: schedule `steps` (one JSON array a line), loop nest (`ir`), what each of the `passes`
    makes of it, or code: `llvm` and `asm` of one for a processor, `cuda` and `opencl` of one for a GPU.

    A record of a user's own function needs that function as `workload`, one of another machine its `target`.
    """
    if as_ not in forms():
        raise UsageError(f"a record is shown as {', '.join(forms())}, got {as_!r}")
    kind = forms()[as_]
    found = _read(record_id, db, workload, target, needs_device=kind is not None and not BACKENDS[kind].is_gpu)
    if kind is None:
        return _COMMON_TEXTS[as_](found)
    source = found.source_for(kind, f"shown as {as_}")
    if as_ != "asm":
        return source.text

    from autosched.runtime.jit import emit_assembly

    return emit_assembly(source.text, found.device.target)


def verify(
    record_id: int,
    db: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
) -> Measurement:
    """Builds a stored candidate again, checks it on fresh data derived from `seed` and times it.

    What comes of it is recorded: the record is one of this installation from then on. Raises VerificationError if it
    fails in any way; it is a failure then, and `best` and `compile` do not know it any more.
    """
    from autosched.measure import Failure

    number: object = seed
    if not isinstance(number, Integral) or int(number) < 0:
        raise UsageError(f"seed must be a whole number of at least 0, got {seed!r}")
    found = _read(record_id, db, workload, target)
    found.check_present()
    (answer,) = verify_here(found.request, [(found.record, found.source())], db, int(seed))
    if isinstance(answer, Failure):
        raise VerificationError(
            f"record {record_id} ({found.problem.name}) failed with {answer.kind}: {answer.message}"
        )
    return answer


def explain(
    record_id: int, db: Path | str | None = None, *, workload: Workload | None = None, target: str | None = None
) -> Mapping[str, Fact]:
    """Why a stored candidate is as fast as it is: facts by name; a name that ends in `_s` is a time in seconds.

    Where the device is this machine, its peak and bandwidth are measured now, in about a second.
    """
    from autosched.kernel import roofline
    from autosched.schedule import largest_tile, steps_from_json
    from autosched.te.rewrites.precision import allowed_precision

    found = _read(record_id, db, workload, target)
    problem, device, seconds = found.problem, found.device, found.record.seconds
    n_bytes = roofline.compulsory_bytes(problem.dag)
    pipe = device.hardware.pipe(found.source, problem.dtype)
    roof = device.hardware.roof(device, n_bytes, pipe)  # without it: what the records and the model say
    facts: dict[str, Fact] = {"workload": problem.name, "shape": ",".join(map(str, problem.shape))}
    if problem.dag.weights:
        where = f" with them in the {place}" if (place := problem.dag.weights_in) else ""
        facts["weights"] = f"{', '.join(problem.dag.weights)}, prepared once, ahead of the time measured{where}"
    if m := largest_tile(steps_from_json(found.record.steps)):
        facts["winograd"] = f"F({m} x {m}, 3 x 3), with its larger error; rates count the direct form's operations"
    elif roof is not None and seconds is not None:
        roof = roof.over(problem.dag.flops, n_bytes, seconds)
    if roof is not None and roof.flops:
        facts["pipe"] = pipe
    if (precision := allowed_precision(problem.dag)) != EXACT:
        facts["precision"] = f"products of float32 by {precision}, with its larger error"
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
    """What `autosched.export` does with a record."""
    from autosched.artifacts import kernel as deploy
    from autosched.artifacts.c_interface import c_identifier
    from autosched.store import named_path

    deploy.check_kind(kind)
    path = None if out is None else named_path(out)
    code_of = exports()[kind]
    found = _read(record_id, db, workload, target, needs_device=not BACKENDS[code_of].is_gpu)
    problem, device = found.problem, found.device
    name = f"{c_identifier(problem.name.rpartition(':')[2])}_{record_id}"
    source = found.source_for(code_of, f"exported as {kind}")
    found.check_verified(db)
    title = f"{problem.name.rpartition(':')[2]} {problem.shape} {problem.dtype}, record {record_id} of autosched"
    kernel = deploy.Deployable(
        name, title, source, device.target, specs(problem.dag.inputs), specs(problem.dag.outputs), problem.dag.weights
    )
    return deploy.write_files(kernel, kind, path)


def _steps_text(found: _Found) -> str:
    return "\n".join(json.dumps(step) for step in json.loads(found.record.steps))


def _nest_text(found: _Found) -> str:
    from autosched.ir.printer import func_text
    from autosched.lower import concretise

    return func_text(concretise(found.nest(), {})[0])


def _passes_text(found: _Found) -> str:
    """The graph of stages and the loop nest as each pass leaves them, and the names of passes that change nothing."""
    from autosched.ir.printer import func_text
    from autosched.lower import concretise
    from autosched.passes import report
    from autosched.te.rewrites.collapse import collapse
    from autosched.te.text import dag_text

    parts: list[str] = []
    collapse(found.problem.dag, report(parts, dag_text))
    concretise(found.nest(), {}, report(parts, func_text))
    return "\n".join(parts)


_COMMON_TEXTS: dict[str, Callable[[_Found], str]] = {"steps": _steps_text, "ir": _nest_text, "passes": _passes_text}


def stored_state(record: Record, request: Request) -> State:
    """A record's schedule of the (collapsed) graph.

    Raises ScheduleError where the steps do not fit it or the device: `collapse` may have come to see more in the
    workload since.
    """
    from autosched.schedule import check_target, replay

    try:
        state = replay(request.collapsed, record.steps)
        check_target(state, request.device.target.kind)
    except ScheduleError as error:
        raise ScheduleError(
            f"record {record.id} does not fit this version of autosched ({error}): tune its workload again"
        ) from error
    return state


def stored_source(record: Record, request: Request, target: Target | None = None) -> Source:
    """A record's code, generated anew from its steps; for another target than the record's where one is given."""
    from autosched.lower import lower

    state = stored_state(record, request)
    return request.source(lower(state), state.steps, {}, target)


@dataclass(frozen=True)
class _Found:
    """A record with what it is a kernel of, and for."""

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
        """The code for a kind of target: of a GPU's schedule in any language for GPUs, whichever of them was measured.

        Raises UsageError where the record is for a processor and the code for a GPU, or the other way round.
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
        """Raises DeviceError where the record's device is not one of this machine."""
        self.device.hardware.check_present(self.device.target)

    def check_verified(self, db: Path | str | None) -> None:
        """Returns when this installation has verified the record; has a worker do it for a claim from elsewhere."""
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
            tell_of_claims([record])
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
) -> _Found:
    """A record with what belongs to it. Checks that they belong together; a record of a GPU brings its target along."""
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
    return _Found(record, (fitting or requests)[0])


def _has_stages(record: Record, request: Request) -> bool:
    """Whether a record's schedule is of stages that are called as those of the workload."""
    try:
        stored_state(record, request)
    except ScheduleError:
        return False
    return True


def _gpu_target(stored: str | None) -> Target | None:
    """The target of a stored description if it is one of a GPU. Raises StoreError for a damaged one."""
    from autosched.measure.protocol import ProtocolError, checked

    try:
        data = json.loads(stored or "null")
        if not isinstance(data, dict) or data.get("gpu") is None:
            return None
        found = checked(data, Target, "target")
    except (ValueError, RecursionError, ProtocolError) as error:
        raise StoreError(f"the stored description of the record's device is damaged: {error}") from error
    assert isinstance(found, Target)
    return found


# The best of several


def stored_kernel(request: Request, records: Sequence[Record], db: Path | str | None) -> Kernel | GpuKernel | None:
    """The best of `records` (best first) that can be had, verified here before it is loaded; None where there is none.

    Whatever is wrong with one, the next is tried; a RecordWarning says what was passed over.
    """
    passed: Passed = {}
    ours = [r for r in records if r.verified]
    kernel = _first_loaded(request, _sources(request, ours, passed), passed)
    if kernel is None:
        claims = [r for r in records if not r.verified]
        kernel = _first_loaded(request, _verified(request, _sources(request, claims, passed), db, passed), passed)
    if kernel is None:  # what no time was left for
        passed.update((r.id, f"not verified within {CLAIMS_S:.0f} s") for r in records if r.id not in passed)
    if passed:
        reasons = "; ".join(f"record {number}: {reason}" for number, reason in islice(passed.items(), REPORTED))
        more = f"; and {len(passed) - REPORTED} more" if len(passed) > REPORTED else ""
        tell(f"stored records of {request.problem.name} were passed over ({reasons}{more})")
    return kernel


def _sources(request: Request, records: Iterable[Record], passed: Passed) -> Iterator[tuple[Record, Source]]:
    for record in records:
        try:
            source = stored_source(record, request)
        except Exception as error:  # of another version, or forged: it costs itself only
            passed[record.id] = _reason(error).removeprefix(f"record {record.id} ")
        else:
            yield record, source


def _verified(
    request: Request, records: Iterator[tuple[Record, Source]], db: Path | str | None, passed: Passed
) -> Iterator[tuple[Record, Source]]:
    """Those that workers here verify, the fastest of a few at a time first."""
    from autosched.measure import Failure

    end = time.monotonic() + CLAIMS_S
    while time.monotonic() < end and (batch := list(islice(records, CLAIMS_AT_ONCE))):
        tell_of_claims([record for record, _ in batch])
        try:
            answers = verify_here(request, batch, db)
        except AutoschedError as error:  # of this machine: no room, no workers
            passed.update((record.id, _reason(error)) for record, _ in batch)
            return
        timed = []
        for (record, source), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Failure):
                passed[record.id] = _reason(f"{answer.kind}: {answer.message}")
            else:
                timed.append((answer.seconds, record, source))
        for _, record, source in sorted(timed, key=lambda row: row[0]):
            yield record, source


def _first_loaded(
    request: Request, records: Iterable[tuple[Record, Source]], passed: Passed
) -> Kernel | GpuKernel | None:
    for record, source in records:
        try:
            return request.load(source)
        except Exception as error:  # the compiler refuses it
            passed[record.id] = _reason(error)
    return None


def _reason(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]}..."
