"""A network as files that need no autosched: a shared library, its header, and a file with its weights.

    int autosched_NAME(const T *in0, ..., T *out0, ..., const void *weights, void *workspace);

It is without state and returns 0. `weights` is what the file NAME.weights begins with: packed for the kernels, 64-byte
aligned, the same for all calls; `autosched_NAME_map`, in the header, maps it, and refuses the weights of another
network by the digest that ends the file. `workspace`, 64-byte aligned, is for one call in flight.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.codegen.llvm.program import emit_program
from autosched.errors import UsageError
from autosched.runtime.jit import export_object
from autosched.session.c_interface import Header, arguments_of, c_identifier, terms, workspace_line, wrapper_ir
from autosched.session.linking import linked, write_whole

if TYPE_CHECKING:
    from autosched.network.model import Model

ENTRY = "network"
SCRIPT = "{ global: autosched_*; local: autosched_parallel; *; };\n"  # the thread pool is shared by libraries
INCLUDES = ("stddef.h", "stdint.h", "string.h", "fcntl.h", "sys/mman.h", "sys/stat.h", "unistd.h")
MAP = """
/* The weights in the file `path`, mapped, for as long as the process lives; NULL where they cannot be read or are not
   this network's. The digest at their end is compared, not computed. */
static inline const void *{symbol}_map(const char *path)
{{
    const size_t bytes = {capitals}_WEIGHTS_BYTES;
    struct stat facts;
    int file = open(path, O_RDONLY);
    void *found = MAP_FAILED;
    if (file < 0)
        return NULL;
    if (fstat(file, &facts) == 0 && (size_t)facts.st_size == bytes + 64)
        found = mmap(NULL, bytes + 64, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (found == MAP_FAILED)
        return NULL;
    if (memcmp((const char *)found + bytes, {capitals}_WEIGHTS_DIGEST, 64) != 0) {{
        munmap(found, bytes + 64);
        return NULL;
    }}
    return found;
}}"""


def export_model(model: Model, path: Path) -> list[Path]:
    """Writes the library at `path`, NAME.so, and beside it NAME.h and NAME.weights; returns the three.

    Each file is there whole or not at all; the library, without which the others are of no use, comes last. Raises
    UsageError for a path that cannot be written, and where there is no linker.
    """
    if path.suffix != ".so":
        raise UsageError(f"a network is exported as a shared library, so the path ends in .so, not {path.name}")
    symbol = f"autosched_{c_identifier(path.stem)}"
    block = model.block.tobytes()
    digest = hashlib.sha256(block).hexdigest()
    library = linked([_entry(model, symbol), *(task.kernel.code for task in model.tasks)], path, SCRIPT)
    files = {
        path.with_suffix(".weights"): block + digest.encode(),
        path.with_suffix(".h"): _header(model, symbol, digest).text.encode(),
        path: library,
    }
    for each, content in files.items():
        write_whole(each, content)
    return [path, path.with_suffix(".h"), path.with_suffix(".weights")]


def _entry(model: Model, symbol: str) -> bytes:
    """The function and the thread pool; the kernels are objects of their own."""
    n, device = len(model.inputs) + len(model.outputs), model.device
    program = emit_program(ENTRY, tuple(model.program.launches()), n, device.target)
    wrapper = wrapper_ir(symbol, ENTRY, range(n + 1), n + 1, device.threads)  # the weights come last
    return export_object(program + wrapper, device.target, device.threads, alone=False)


def _header(model: Model, symbol: str, digest: str) -> Header:
    capitals, target, threads = symbol.upper(), model.device.target, model.device.threads
    arguments = arguments_of(model.inputs, model.outputs)
    about = [f"  {a.name:<12} {a.role}  {a.spec}" for a in arguments]
    about.append(f"  {'weights':<12} the content of the file *.weights: 64-byte aligned, {model.block.nbytes} bytes")
    about += [workspace_line(model.arena_bytes), "", *terms(target, threads)]
    macros: list[tuple[str, object]] = [
        ("TARGET", f'"{target.arch}-{target.mcpu}"'),
        ("THREADS", threads),
        ("WORKSPACE_BYTES", model.arena_bytes),
        ("WEIGHTS_BYTES", model.block.nbytes),
        ("WEIGHTS_DIGEST", f'"{digest}"'),
    ]
    taken = [*(f"{a.kind}{a.name}" for a in arguments), "const void *weights", "void *workspace"]
    title = f"the network {model.program.graph.name}"
    own = MAP.format(symbol=symbol, capitals=capitals)
    return Header(symbol, title, about, INCLUDES, macros, [f"int {symbol}({', '.join(taken)});"], own)
