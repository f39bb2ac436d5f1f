"""Compilation units of kernels for processors: each is compiled once for all kernels, of any network, that have it.

A network for another number of images mostly has units that are compiled already. For these neither the passes of
lowering nor LLVM run; only the entry points are compiled anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from autosched.codegen.source import KernelSource, PieceCode
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.disk_cache import read, write
from autosched.runtime.jit import compile_object
from autosched.runtime.versions import code_key
from autosched.target import Target

if TYPE_CHECKING:
    from autosched.ir.stmt import Func
    from autosched.lower.code_splitting import Piece
    from autosched.schedule import Step


# Entry points only call nests, and LLVM compiles them in a quarter of the time without optimisation: 32 kernels of
# ResNet-50 in 0.14 s instead of 0.55 s (Zen 3).
ENTRIES_LEVEL = 0


@dataclass(frozen=True)
class CompiledUnit:
    """The object file of a unit. `key`: its key in the cache, `interface`: what entry points need to call it."""

    key: str
    interface: PieceCode
    code: bytes


@dataclass(frozen=True)
class EmittedKernel:
    """The LLVM IR of a kernel.

    `entries`: the module of the entry points. `units`: each with its text, which is empty if it is compiled already.
    """

    entries: KernelSource
    units: tuple[tuple[CompiledUnit, str], ...]


def emit_kernel(
    nest: Func, steps: tuple[Step, ...], values: Mapping[str, int], target: Target, threads: int
) -> EmittedKernel:
    """Emit the code of a lowered schedule with `values` for the parameters of its steps. Raises what lowering does."""
    from autosched.codegen.llvm.compilation_units import emit_entries
    from autosched.lower.code_splitting import pieces_of
    from autosched.schedule import largest_tile

    concrete, pieces = pieces_of(nest, values)
    emitted = [_emitted(piece, target) for piece in pieces]
    interfaces = [(piece, unit.interface) for piece, unit, _ in emitted]
    entries = replace(emit_entries(concrete, interfaces, target, threads), winograd=largest_tile(steps))
    return EmittedKernel(entries, tuple((unit, text) for _, unit, text in emitted))


def compile_kernel(kernel: EmittedKernel, target: Target) -> tuple[bytes, tuple[CompiledUnit, ...]]:
    """Return the object file of the entry points and the units, which are written into the cache.

    Raises RuntimeError if LLVM rejects the code.
    """
    units = []
    for unit, text in kernel.units:
        if text:
            unit = replace(unit, code=compile_object(text, target))
            write(unit.key, asdict(unit.interface), unit.code)
        units.append(unit)
    return compile_object(kernel.entries.ir, target, ENTRIES_LEVEL), tuple(units)


def find_unit(key: str) -> CompiledUnit | None:
    """Return the unit of the cache with this key; None for a miss."""
    entry = read(key)
    if entry is None:
        return None
    try:
        return CompiledUnit(key, checked(entry[0], PieceCode, "a piece"), entry[1])
    except ProtocolError:
        return None


def _emitted(piece: Piece, target: Target) -> tuple[Piece, CompiledUnit, str]:
    """Return the piece that is emitted, its unit, and its text, which is empty if the unit is in the cache."""
    from autosched.codegen.llvm.compilation_units import emit_piece

    key = code_key(piece.digest, target)
    if (unit := find_unit(key)) is not None:
        return piece, unit, ""
    emitted = emit_piece(piece, f"piece_{key}.", target)
    if emitted is None:
        assert piece.exact is not None
        return _emitted(piece.exact, target)
    text, interface = emitted
    return piece, CompiledUnit(key, interface, b""), text
