"""Public functions for records and networks: show, verify, explain, export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from autosched.backends import VARIANTS, forms
from autosched.errors import UsageError
from autosched.keywords import spelled_out
from autosched.network_api import is_network, loaded, show_network, verify_model

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from autosched.executor.model import Model
    from autosched.graph.graph import Array, Graph
    from autosched.inspection.network import Explanation
    from autosched.kernel.roofline import Fact
    from autosched.kernel.sizes.sized_kernel import SizedKernel
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
    """Verify the kernel of a record, or a network, against the reference.

    Args:
        what: the number of a record, or a network, loaded or as `load` takes it.
        inputs: of a network, arrays in order or by name; None: normally distributed numbers. Structured numbers are
            checked as well. Of a record, its database.
        db, workload, target: of a record, as in `show`. `seed`: that of the input data.
        locate: stop at the first kernel of the network beyond its tolerance.
        onnxruntime: the network's ONNX file, whose results by onnxruntime are compared, too.
        fixed: values of the inputs that were fixed when the network was loaded, for onnxruntime.

    Returns, of a record, the `Measurement` of a new build, which is stored; of a network a `Verification` with `passed`
    and `summary()`. The outputs of a network are compared with the imported graph in float64, its kernels with their
    nodes. Root mean square and maximum of an error may be 4 times (with Winograd's transforms 10 times) those of an
    evaluation in the network's types that sums in the least accurate order, or 1e-6 of the reference's. Integers must
    be equal, quantised ones except for ties.

    Raises VerificationError for a record that fails, UsageError and DeviceError.
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
    """Explain the speed of a record or a network by the limits of its device.

    Args:
        what: the number of a record; a network, loaded or as `load` takes it; or what torch.compile(...,
            backend="autosched") returned, after a call.
        db, workload, target: of a record, as in `show`.

    Returns, of a record, facts by name, times in seconds under names that end in `_s`; peak and bandwidth are measured
    in about a second. Of a network an `Explanation`: the time of each kernel in the network against the least time by
    the measured roofline. Of a compiled torch module: the operators that torch runs, and their share of the time.

    Raises UsageError for anything else.
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
    sizes: Mapping[str, range | tuple[int, int]] | None = None,
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
    sizes: Mapping[str, Any] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> str:
    """Return a record or a network as text.

    Args:
        what: the number of a record, or a network, loaded or as `load` takes it.
        db: database file of the record; None: the user's. A value of `as_` is accepted here, too: `show(1, "llvm")`.
        as_: of a record its schedule `steps` (default; one JSON array a line), the loop nest `ir`, the nest after each
            of the `passes`, or code: `llvm` and `asm` for a processor, `cuda` and `opencl` for a GPU; with `sizes` as
            `compile` takes them the `variants` of the workload's kernel for these. Of a network the
            `graph` after passes (default), after each of the `passes`, its kernels (`groups`), the plan of its arena
            (`memory`), a graph for Graphviz (`dot`), or code: `llvm`, `cuda`, `opencl`.
        workload: the function of a record, if it is the user's own.
        target: of a record, if it is of another machine; of a network, the device, which may be absent.
        threads, example_inputs, sizes, inputs: of a network, as in `load`.

    Raises UsageError for a form that does not exist for the record or network, and for arguments of the other kind.
    """
    if is_network(what):
        _refuse("show", "networks", workload=workload)
        form = as_ or db or "graph"
        return show_network(
            what, form, example_inputs=example_inputs, sizes=sizes, inputs=inputs, target=target or "cpu",
            threads=threads,
        )  # fmt: skip
    from autosched.inspection import record as records

    if as_ == VARIANTS:
        return records.show_variants(what, db, sizes or {}, workload=workload, target=target)
    _refuse("show", "records", threads=threads, example_inputs=example_inputs, sizes=sizes, inputs=inputs)
    if as_ is None and db in forms():
        db, as_ = None, db
    return records.show(what, db, as_ or "steps", workload=workload, target=target)


@spelled_out()
def export(
    record_id: int | SizedKernel,
    db: Path | str | None = None,
    kind: str = "so",
    out: Path | str | None = None,
    *,
    workload: Workload | None = None,
    target: str | None = None,
) -> list[Path]:
    """Write the kernel of a record, or one of varying sizes, to files, and return their paths.

    `Model.export` exports a network.

    Args:
        record_id: the number of the record, or a kernel that `compile(sizes=...)` returned: its function takes the
            sizes as arguments, and has the code that the kernel has by then. `db`: the database file; None: the user's.
        kind: for a processor `object`, a shared library `so` or a `c-header`; for a GPU `cuda` or `opencl` source, or
            a `cubin`. Code has a header file beside it.
        out: path of the file; None: the name of the function, `autosched_<workload>_<record>`, in the working folder.
        workload, target: as in `show`.

    A record that this installation has not verified is verified first. Raises VerificationError for a failed record,
    DeviceError for an unverified record whose device is absent, UsageError.
    """
    from autosched.inspection import record as records

    if isinstance(record_id, int):
        return records.export(record_id, db, kind, out, workload=workload, target=target)
    from autosched.artifacts.sized_kernel import export_sized_kernel

    _refuse("export", "a kernel of varying sizes", db=db, workload=workload, target=target)
    if kind != "so":
        raise UsageError(f"a kernel of varying sizes is exported as so, a shared library, not as {kind}")
    return export_sized_kernel(record_id, None if out is None else Path(out))


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


def _refuse(verb: str, subject: str, **arguments: object) -> None:
    """Raise UsageError for an argument that `verb` does not take for networks, or for records."""
    unsupported = next((name for name, value in arguments.items() if value is not None), None)
    if unsupported is not None:
        raise UsageError(f"{verb} of {subject} has no {unsupported}")
