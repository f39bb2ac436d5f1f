"""Kernels for processors as objects: each piece of one is compiled once for all kernels, of any network, that have it.

Of another number of images most kernels have the pieces of those that there are: neither the passes of lowering run for
them nor LLVM, but for the entry points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from autosched.codegen.llvm.compilation_units import PieceCode, emit_entries, emit_piece
from autosched.codegen.source import KernelSource
from autosched.ir.stmt import Func
from autosched.kernel.versions import code_key
from autosched.lower.code_splitting import Piece, pieces_of
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import read, write
from autosched.runtime.jit import compile_object
from autosched.schedule import Step, largest_tile
from autosched.target import Target


@dataclass(frozen=True)
class ObjectPart:
    """The object file of a piece, by what it depends on; `about` is what entry points know of it."""

    key: str
    about: PieceCode
    code: bytes


@dataclass(frozen=True)
class EmittedKernel:
    """`entries`: the module of the entry points; `parts`: with the text of those that are still to be compiled."""

    entries: KernelSource
    parts: tuple[tuple[ObjectPart, str], ...]


def emit_kernel(
    nest: Func, steps: tuple[Step, ...], values: Mapping[str, int], target: Target, threads: int
) -> EmittedKernel:
    """The code of a lowered schedule with the values of the parameters of its steps. Raises what lowering does."""
    concrete, pieces = pieces_of(nest, values)
    emitted = [_emitted(piece, target) for piece in pieces]
    about = [(piece, part.about) for piece, part, _ in emitted]
    entries = replace(emit_entries(concrete, about, target, threads), winograd=largest_tile(steps))
    return EmittedKernel(entries, tuple((part, text) for _, part, text in emitted))


def compile_kernel(kernel: EmittedKernel, target: Target) -> tuple[bytes, tuple[ObjectPart, ...]]:
    """The object of the entry points and those of the pieces, which are kept. Raises RuntimeError."""
    parts = []
    for part, text in kernel.parts:
        if text:
            part = replace(part, code=compile_object(text, target))
            write(part.key, asdict(part.about), part.code)
        parts.append(part)
    return compile_object(kernel.entries.ir, target), tuple(parts)


def compile_once(ir: str, target: Target) -> bytes:
    """The object file of a module, which is kept by its text."""
    key = code_key(ir, target)
    if (found := read(key)) is not None:
        return found[1]
    code = compile_object(ir, target)
    write(key, {}, code)
    return code


def find_part(key: str) -> ObjectPart | None:
    """A piece that was compiled before."""
    found = read(key)
    if found is None:
        return None
    try:
        return ObjectPart(key, checked(found[0], PieceCode, "a piece"), found[1])
    except ProtocolError:
        return None


def _emitted(piece: Piece, target: Target) -> tuple[Piece, ObjectPart, str]:
    """What is known of the code of a piece, or its text."""
    key = code_key(piece.digest, target)
    if (known := find_part(key)) is not None:
        return piece, known, ""
    made = emit_piece(piece, f"piece_{key}.", target)
    if made is None:
        assert piece.exact is not None
        return _emitted(piece.exact, target)
    text, about = made
    return piece, ObjectPart(key, about, b""), text
