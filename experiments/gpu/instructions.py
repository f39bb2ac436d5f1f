"""The step `instructions`: each form of `forms` on the card, held to its formula and to the simulator's bytes.

First all are compiled and simulated, by processes side by side; then one process runs them on the card, and another
takes its place after a fault or where a kernel does not end. Where a descriptor seems to mean something else, its other
meanings are tried. In a dry run the simulator stands for the card.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from autosched.errors import AutoschedError
from autosched.runtime.gpu.compile import CompileError, compile_source
from autosched.runtime.simulator.execute import Mode
from autosched.target import usable_cores
from experiments.arena import Lost, ProcessArena
from experiments.gpu.forms import all_forms
from experiments.gpu.forms.form import InstructionForm
from experiments.gpu.run_form import FAIL, FAULT, PASS, REFUSED, compiler, on_simulator, outputs
from experiments.gpu.steps import Row, StepRequest

FORM_S, FIRST_S = 8.0, 40.0  # of a form; of the first, with which the card is opened
LOST = "LOST"
BIT = ", bit 21 of the map "  # see `run_form`


def predict(request: StepRequest) -> str:
    return (
        "all PASS; at risk: MN-major and unswizzled descriptors of wgmma, im2col, maps of small tensors with bit 21 "
        "set, which lane is elected; sums of tensor cores may differ from the simulator's in the last bits"
    )


def chosen(is_dry: bool) -> dict[str, InstructionForm]:
    """All forms, or in a dry run every twelfth."""
    return dict(list(all_forms().items())[:: 12 if is_dry else 1])


def prepared(name: str, compiles: bool) -> tuple[str | None, bytes]:
    """(the compiler's refusal, the simulator's bytes: none where it cannot run). What is compiled is in the cache."""
    form, refusal = all_forms()[name], None
    if compiles:
        try:
            compile_source(form.source, compiler())
        except (CompileError, AutoschedError) as error:
            refusal = str(error)[:600]
    try:
        return refusal, bytes(outputs(form, on_simulator(form, Mode())))
    except (CompileError, AutoschedError):
        return refusal, b""


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    give_up = time.monotonic() + request.seconds
    forms = chosen(request.is_dry)
    spawn = multiprocessing.get_context("spawn")
    where = "simulator" if request.is_dry else "card"
    command = [sys.executable, "-m", "experiments.gpu.run_form", str(os.getpid()), where]
    arena = ProcessArena(command, request.out / "card.log")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(max(1, min(12, usable_cores() - 1)), mp_context=spawn) as pool,
    ):
        try:
            ready = start(pool, forms, not request.is_dry)
            for name, form in forms.items():
                if time.monotonic() > give_up:
                    return
                yield from tried(arena, name, form, ready[name], Path(folder) / "outputs.npy")
        finally:
            arena.close()
            pool.shutdown(wait=False, cancel_futures=True)


def start(
    pool: Executor, forms: Mapping[str, InstructionForm], compiles: bool
) -> dict[str, Future[tuple[str | None, bytes]]]:
    return {name: pool.submit(prepared, name, compiles) for name in forms}


def tried(
    arena: ProcessArena, name: str, form: InstructionForm, ready: Future[tuple[str | None, bytes]], to: Path
) -> Iterator[tuple[str, Row]]:
    """The rows of one form: as it is, with either value of a bit of maps, with other meanings of its descriptors."""
    try:
        refusal, simulated = ready.result(timeout=FIRST_S)
    except Exception as error:  # a pool that broke: the form compiles where it runs
        refusal, simulated = None, b""
        print(f"{name} was not prepared: {type(error).__name__}: {error}", file=sys.stderr)
    if refusal:
        yield name, {"status": REFUSED, "words": refusal}
        return
    row = asked(arena, {"form": name, "to": str(to)})
    if to.exists():
        row |= compared(simulated, np.load(to).tobytes(), form)
        to.unlink()
    if row["status"] in (FAIL, FAULT, LOST) and form.others:
        row["passes as"] = [o for o in form.others if asked(arena, {"form": name, "other": o})["status"] == PASS]
    yield name, row
    if form.has_maps:
        for bit in (False, True):
            yield f"{name}{BIT}{int(bit)}", asked(arena, {"form": name, "bit": bit})


def asked(arena: ProcessArena, request: Mapping[str, Any]) -> Row:
    """The answer; a process with a lost device is replaced."""
    try:
        row = arena.ask(request, FIRST_S if arena.is_new else FORM_S)
    except Lost as lost:
        return {"status": LOST, "words": str(lost)[:600]}
    if row.get("sticky"):
        arena.close()
    return row


def compared(simulated: bytes, found: bytes, form: InstructionForm) -> Row:
    """Whether the bytes are the simulator's, else the largest difference of its numbers."""
    if len(simulated) != len(found):
        return {"as simulated": None}
    if simulated == found:
        return {"as simulated": True}
    (dtype, *others) = {e.dtype for e in form.expected.values()}
    if others:
        return {"as simulated": False}
    with np.errstate(invalid="ignore"):
        a, b = (np.frombuffer(x, dtype).astype(np.float64) for x in (simulated, found))
        apart, size = np.nanmax(np.abs(a - b)), np.nanmax(np.abs(a))
    return {"as simulated": False, "apart": float(apart), "of": float(size)}


def summary(rows: Mapping[str, Row]) -> str:
    counts = Counter(row["status"] for row in rows.values())
    same = [row["as simulated"] for row in rows.values() if row.get("as simulated") is not None]
    lines = [
        ", ".join(f"{n} {status}" for status, n in counts.most_common())
        + f"; the simulator's bytes: {sum(same)} of {len(same)}"
    ]
    for name, row in rows.items():
        if row["status"] != PASS:
            other = f"; passes as {row['passes as']}" if row.get("passes as") else ""
            lines.append(f"{row['status']} {name}: {row['words'][:160]}{other}")
    apart = [f"{name} by {row['apart']:.3g} of {row['of']:.3g}" for name, row in rows.items() if "apart" in row]
    return "\n".join([*lines[:60], *(f"other bytes: {text}" for text in apart[:30])])
