"""Public functions for records and networks: show, verify, explain, export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from autosched.backends import forms
from autosched.errors import UsageError
from autosched.keywords import spelled_out
from autosched.network_api import is_network, loaded, show_network, verify_model

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from autosched.executor.model import Model
    from autosched.graph.graph import Array, Graph
    from autosched.inspection.network import Explanation
    from autosched.kernel.roofline import Fact
    from autosched.measure import Measurement
    from autosched.tuner.definition import Workload
    from autosched.verification.verify import Verification


@overload
def verify(
    what: int,
    inputs: Path | str | None = None,
    *,
    db: Path | str | None = None,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
) -> Measurement: ...
@overload
def verify(
    what: Model | Graph | Path | str,
    inputs: Mapping[str, object] | Sequence[object] | None = None,
    *,
    locate: bool = False,
    onnxruntime: Path | None = None,
    fixed: Mapping[str, ArrayLike] | None = None,
) -> Verification: ...
@spelled_out()
def verify(
    what: Any,
    inputs: Any = None,
    *,
    db: Path | str | None = None,
    workload: Workload | None = None,
    target: str | None = None,
    seed: int = 1,
    locate: bool = False,
    onnxruntime: Path | None = None,
    fixed: Mapping[str, ArrayLike] | None = None,
) -> Any:
    """Verify a record's kernel or a whole network against the reference.

    A record, by its number, is built again, checked on fresh data drawn by `seed` and timed; the result is recorded.
    Raises VerificationError if it fails in any way. Its database is `db`, or the second argument.

    A network, loaded or as `load` takes it, is compared with the graph as it was imported in float64, and each of its
    kernels with its nodes: on `inputs` (in order or by name; default: normal numbers) and on structured numbers. Root
    mean square and maximum of an error may be 4 times those of a plain evaluation in the network's types, whose sums
    are in the least accurate order, or 1e-6 of the reference's; with Winograd's transforms 10 times that. Integers must
    be equal, quantised ones but for ties.
    `locate` stops at the first kernel beyond its bound; `onnxruntime` is the ONNX file that the network is, for
    comparing with that package as well, which gets what inputs were `fixed` to. The answer says whether it `passed`,
    and has a `summary()`.
    """
    if is_network(what):
        _refuse("verify", "networks", db=db, workload=workload, target=target, seed=seed if seed != 1 else None)
        return verify_model(loaded(what), inputs, locate=locate, onnxruntime=onnxruntime, fixed=fixed)
    from autosched.inspection import record as records

    _refuse("verify", "records", locate=locate or None, onnxruntime=onnxruntime, fixed=fixed)
    return records.verify(what, inputs if db is None else db, workload=workload, target=target, seed=seed)


@overload
def explain(
    what: int, db: Path | str | None = None, *, workload: Workload | None = None, target: str | None = None
) -> Mapping[str, Fact]: ...
@overload
def explain(what: Model | Graph | Path | str) -> Explanation: ...
@overload
def explain(what: Any) -> Mapping[str, Fact]: ...
@spelled_out()
def explain(
    what: Any, db: Path | str | None = None, *, workload: Workload | None = None, target: str | None = None
) -> Any:
    """Explain the speed of a record or a network: facts by name; a name that ends in `_s` is a time in seconds.

    Of a record by its number: against the limits of its device, whose peak and bandwidth are measured now, in about a
    second. Of what torch.compile(..., backend="autosched") returned, once it was called: the operators that torch runs
    and their share of the time. Of a network, loaded or as `load` takes it: its kernels, those that compute the same
    together, timed as they run in it, against the least time that their operations and bytes take. Raises UsageError
    for anything else.
    """
    if isinstance(what, int):
        from autosched.inspection import record as records

        return records.explain(what, db, workload=workload, target=target)
    _refuse("explain", "networks", db=db, workload=workload, target=target)
    if hasattr(what, "_torchdynamo_orig_callable"):
        from autosched.torch_backend.explain import explain_compiled

        return explain_compiled(what)
    if is_network(what):
        from autosched.inspection.network import explain_model

        return explain_model(loaded(what))
    raise UsageError(
        "explain takes the number of a record, a network, or what torch.compile with this backend returned, "
        f"not {type(what).__name__}"
    )


@overload
def show(
    what: int,
    db: Path | str | None = None,
    as_: str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> str: ...
@overload
def show(
    what: object,
    db: str | None = None,
    as_: str | None = None,
    *,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
    target: str | None = None,
    threads: int | None = None,
) -> str: ...
@spelled_out()
def show(
    what: Any,
    db: Any = None,
    as_: str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
    threads: int | None = None,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> str:
    """Return a record or a network as text, in the form `as_`, which may be the second argument too: `show(1, "llvm")`.

    A record of the database `db`, by its number: schedule `steps` (one JSON array a line), loop nest (`ir`), what each
    of the `passes` makes of it, or code: `llvm` and `asm` of one for a processor, `cuda` and `opencl` of one for a GPU.
    One of a user's own function needs that function as `workload`, one of another machine its `target`.

    A network, loaded or as `load` takes it, for a `target` that may be elsewhere: its `graph` after passes, what each
    of the `passes` makes of it, its kernels (`groups`), the plan of its arena as a picture (`memory`), kernels and
    values for Graphviz (`dot`), or their code (`llvm`, `cuda`, `opencl`).
    """
    if is_network(what):
        _refuse("show", "networks", workload=workload)
        form = as_ or db or "graph"
        return show_network(
            what, form, example_inputs=example_inputs, sizes=sizes, inputs=inputs, target=target or "cpu",
            threads=threads,
        )  # fmt: skip
    from autosched.inspection import record as records

    _refuse("show", "records", threads=threads, example_inputs=example_inputs, sizes=sizes, inputs=inputs)
    if as_ is None and db in forms():
        db, as_ = None, db
    return records.show(what, db, as_ or "steps", workload=workload, target=target)


@spelled_out()
def export(
    record_id: int,
    db: Path | str | None = None,
    kind: str = "so",
    out: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> list[Path]:
    """Write a record's kernel to `out`: of a processor as an `object`, a shared library (`so`) or a `c-header`, of a
    GPU as `cuda` or `opencl` source or as a `cubin`. A network is exported by `Model.export`.

    Code comes with its header beside it. Returns the paths. The default names are those of the function,
    `autosched_<workload>_<record>`. A record that this installation has not verified is verified first. Raises
    VerificationError for one that failed, DeviceError for one from elsewhere whose device is not here.
    """
    from autosched.inspection import record as records

    return records.export(record_id, db, kind, out, workload=workload, target=target)


def made_inputs(
    model: str | Path | Graph,
    example_inputs: Sequence[object] | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> Mapping[str, Array]:
    """Return normally distributed inputs for a network, by name; integers are indices in range, or 0 and 1."""
    from autosched.executor.load import load_network
    from autosched.verification.sample_inputs import input_sets

    return input_sets(load_network(model, example_inputs, sizes, inputs)[0])[0].arrays


def _refuse(verb: str, kind: str, **given: object) -> None:
    """Raise UsageError for an argument that `verb` does not take for networks, or for records."""
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise UsageError(f"{verb} of {kind} has no {wrong}")
