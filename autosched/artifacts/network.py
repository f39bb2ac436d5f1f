"""Export of a network to files that need no autosched: a shared library, its header, and a weights file.

    int autosched_NAME(const T *in0, ..., T *out0, ..., const void *weights, void *workspace);

The function is stateless and returns 0, or OUT_OF_RANGE (34) if an index is out of range: `workspace` then begins with
two int64_t, the number of the bounds check, which the header lists, and the index. NAME.safetensors has the packed
weights as one tensor; `weights` points to it, 64-byte aligned, for all calls. `autosched_NAME_map`, in the header, maps
the file, and refuses a damaged file and one of another network. Each call in flight needs a `workspace` of its own,
64-byte aligned.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.artifacts.c_interface import Header, arguments_of, c_identifier, terms, workspace_line, wrapper_ir
from autosched.artifacts.linking import EXPORTED, link_library, write_whole
from autosched.artifacts.weights_file import SUFFIX, WeightsFile, map_function, packed_weights
from autosched.codegen.calls import OUT_OF_RANGE
from autosched.codegen.llvm.program import emit_program
from autosched.errors import UsageError
from autosched.graph.saved import ALIGNMENT
from autosched.planning.extract_tasks import objects_of
from autosched.planning.loop_program import loop_modules
from autosched.runtime.jit import compile_once, export_object

if TYPE_CHECKING:
    from autosched.executor.cpu_model import CpuModel

ENTRY = "network"
INCLUDES = ("errno.h", "stddef.h", "stdint.h", "string.h", "fcntl.h", "sys/mman.h", "sys/stat.h", "unistd.h")


def export_model(model: CpuModel, path: Path) -> list[Path]:
    """Writes the library at `path`, NAME.so, and beside it NAME.h and NAME.safetensors; returns the three.

    Each file is written atomically, the library last. Raises UsageError for a path that cannot be written, or without a
    linker.
    """
    if path.suffix != ".so":
        raise UsageError(f"a network is exported as a shared library, so the path ends in .so, not {path.name}")
    symbol = f"autosched_{c_identifier(path.stem)}"
    weights = packed_weights(model.block, model.program.graph.name, model.device.target)
    loops = [compile_once(module, model.device.target) for module in loop_modules(model.program, model.device.target)]
    library = link_library([_entry(model, symbol), *loops, *objects_of(model.tasks)], path, EXPORTED)
    files = {
        path.with_suffix(SUFFIX): weights.content,
        path.with_suffix(".h"): _header(model, symbol, weights).text.encode(),
        path: library,
    }
    for each, content in files.items():
        write_whole(each, content)
    return [path, path.with_suffix(".h"), path.with_suffix(SUFFIX)]


def _entry(model: CpuModel, symbol: str) -> bytes:
    """The function and the thread pool; the kernels are objects of their own."""
    n, device = len(model.inputs) + len(model.outputs), model.device
    program, _ = emit_program(ENTRY, tuple(model.program.calls()), n, device.target, tuple(model.program.copies()))
    wrapper = wrapper_ir(symbol, ENTRY, range(n + 1), n + 1, device.threads)  # the weights are the last
    return export_object(program + wrapper, device.target, device.threads, alone=False)


def _header(model: CpuModel, symbol: str, weights: WeightsFile) -> Header:
    target, threads = model.device.target, model.device.threads
    arguments = arguments_of(model.inputs, model.outputs)
    about = [f"  {a.name:<12} {a.role}  {a.spec}" for a in arguments]
    for output, base in model.program.in_place.items():
        result, given = arguments[len(model.inputs) + output].name, arguments[base].name
        about.append(f"  {result:<12} may be the array of {given}: then rows of it are written, and no more is copied")
    about.append(f'  {"weights":<12} from {symbol}_map("NAME{SUFFIX}"), the same for all calls')
    workspace_bytes = max(-(-model.workspace_bytes // ALIGNMENT), 1) * ALIGNMENT  # aligned_alloc needs a multiple
    about += [workspace_line(workspace_bytes), "", *terms(target, threads), *_checks(model, symbol)]
    macros: list[tuple[str, object]] = [
        ("TARGET", f'"{target.arch}-{target.mcpu}"'),
        ("THREADS", threads),
        *((f"SIZE_{a.name}", math.prod(a.spec.shape)) for a in arguments),
        ("WORKSPACE_BYTES", workspace_bytes),
        *([("OUT_OF_RANGE", OUT_OF_RANGE)] if model.program.checks else []),
        ("WEIGHTS_AT", len(weights.head)),
        ("WEIGHTS_BYTES", weights.block.nbytes),
        ("WEIGHTS_DIGEST", f'"{weights.digest}"'),
        ("WEIGHTS_SUM", f"UINT64_C({weights.checksum})"),
    ]
    taken = [*(f"{a.kind}{a.name}" for a in arguments), "const void *weights", "void *workspace"]
    title = f"the network {model.program.graph.name}"
    prototypes = [f"int {symbol}({', '.join(taken)});"]
    return Header(symbol, title, about, INCLUDES, macros, prototypes, map_function(symbol, weights, target))


def _checks(model: CpuModel, symbol: str) -> list[str]:
    """What is said of indices that are data."""
    if not model.program.checks:
        return []
    rows = [f"  {n}: {check.reader}, {check.low} to {check.high}" for n, check in enumerate(model.program.checks)]
    code = f"{symbol.upper()}_OUT_OF_RANGE"
    return [
        f"Returns {code} where an index is out of range; the workspace then begins with two",
        "int64_t, the number of the check and the index. The checks, by number, and their ranges:",
        *rows,
    ]
