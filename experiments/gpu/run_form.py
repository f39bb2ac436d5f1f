"""Instruction forms one after the other, in a process that they may take with them.

    python -m experiments.gpu.run_form PARENT_PID WHERE     answers requests, see `arena`
    python -m experiments.gpu.run_form --once NAME          one form on the card, for tools that watch a process

WHERE is `card` or `simulator`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autosched.errors import AutoschedError
from autosched.runtime.gpu.compile import CompileError, Compiler, compile_source, cuda_compiler
from autosched.runtime.gpu.device import STICKY, DeviceFault, GpuDevice, raw
from autosched.runtime.gpu.devices import open_device
from autosched.runtime.gpu.tensor_maps import EncodedMap
from autosched.runtime.simulator.execute import Mode, build, execute
from experiments.arena import serve
from experiments.gpu.forms import all_forms
from experiments.gpu.forms.form import Array, InstructionForm

ARCH = "sm_90"  # forms ask for its own instructions
SMALL_MAPS = 1 << 21  # of word 1 of a map: what drivers of CUDA 13.1 and before set wrongly
PASS, FAIL, REFUSED, FAULT = "PASS", "FAIL", "REFUSED", "FAULT"


def compiler() -> Compiler:
    return cuda_compiler(ARCH)


@cache
def card() -> GpuDevice:
    return open_device("cuda")


def on_simulator(form: InstructionForm, mode: Mode) -> dict[str, Array]:
    """The form's arrays behind it. Raises AutoschedError, CompileError."""
    memory = form.fresh()
    known = frozenset(name for name in memory if name.isupper())
    execute(build(form.text, mode.checked), [form.launch], memory, known, mode)
    return memory


def on_card(form: InstructionForm, bit: bool | None = None) -> dict[str, Array]:
    """The same on the card; `bit`: what SMALL_MAPS is in its maps, None: what the driver's code says.

    Raises AutoschedError, CompileError, DeviceFault.
    """
    device, memory = card(), form.fresh()
    kernels = device.load(compile_source(form.source, compiler()), form.source)
    buffers = {name: device.allocate(array.nbytes) for name, array in memory.items()}
    try:
        for name, array in memory.items():
            device.upload(buffers[name], raw(array))
        call = device.prepare(kernels, form.source, buffers)
        for value in call.launches[0].keep[0]:
            if bit is not None and isinstance(value, EncodedMap):
                value.words[1] = value.words[1] & ~SMALL_MAPS | SMALL_MAPS * bit
        device.run(call)
        device.synchronise()
        for name, array in memory.items():
            device.download(buffers[name], raw(array))
    finally:
        for buffer in buffers.values():
            try:
                device.free(buffer)
            except DeviceFault:
                break
    return memory


def judged(
    form: InstructionForm, run: Callable[[InstructionForm], dict[str, Array]], to: Path | None = None
) -> dict[str, Any]:
    """A row; the outputs go to the file `to`."""
    begun = time.monotonic()
    row: dict[str, Any]
    try:
        memory = run(form)
        complaint = form.complaint(memory)
        row = {"status": FAIL if complaint else PASS, "words": complaint or ""}
        if to is not None:
            np.save(to, outputs(form, memory))
    except CompileError as error:
        row = {"status": REFUSED, "words": str(error)[:600]}
    except DeviceFault as fault:
        row = {"status": FAULT, "words": f"{fault.kind}: {fault}"[:600], "sticky": fault.kind in STICKY}
    except AutoschedError as error:
        row = {"status": REFUSED, "words": str(error)[:600]}
    return row | {"seconds": round(time.monotonic() - begun, 3)}


def outputs(form: InstructionForm, memory: Mapping[str, Array]) -> Array:
    """All bytes that are compared."""
    return np.concatenate([raw(memory[name]) for name in sorted(form.expected)])


def named(name: str, other: str | None = None) -> InstructionForm:
    form = all_forms()[name]
    return form.others[other] if other else form


def answer(request: Mapping[str, Any], where: str) -> dict[str, Any]:
    form, to = named(request["form"], request.get("other")), request.get("to")

    def run(given: InstructionForm) -> dict[str, Array]:
        return on_card(given, request.get("bit")) if where == "card" else on_simulator(given, Mode(late=False))

    return judged(form, run, Path(to) if to else None)


def main() -> int:
    if sys.argv[1] == "--once":
        found = answer({"form": sys.argv[2]}, "card")
        print(found)
        return int(found["status"] != PASS)
    where = sys.argv[2]
    serve(lambda request, _: answer(request, where))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
