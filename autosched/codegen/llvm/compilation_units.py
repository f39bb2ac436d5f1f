"""Compilation units: the pieces of a kernel as modules that several kernels share (`lower/code_splitting.py`).

The nests of a piece are functions that other modules see. The kernel itself is a small module: the entry points, which
know the extents that pieces do not, and call the nests for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosched.codegen.llvm.kernel import EntryPoint, emit_nests, module_text, offsets_of, split_nests
from autosched.codegen.source import KernelSource, NestCode, PieceCode
from autosched.ir.stmt import For, Func
from autosched.lower.code_splitting import ANY_EXTENT, Piece
from autosched.lower.limits import check_workspace
from autosched.lower.pipeline import concretise_piece
from autosched.target import Target


def emit_piece(piece: Piece, symbol: str, target: Target) -> tuple[str, PieceCode] | None:
    """LLVM IR text of the nests, which are called `symbol` and their number; None for a piece of any extent in which
    passes have changed the outermost loop."""
    func, simplify = concretise_piece(piece)
    shared, nests = split_nests(symbol, func.body)
    if piece.extent is not None:
        (loop, *_), outermost = (*nests[0].parallel, None), piece.func.body
        assert isinstance(outermost, For)
        if len(nests) > 1 or loop is None or (loop.var, loop.extent) != (outermost.var, outermost.extent):
            return None
    buffers = (*func.params, *func.prepared, *shared)
    bodies, codes, private_bytes = emit_nests(nests, buffers, simplify, target)
    visible = [body.replace("define internal ", "define hidden ", 1) for body in bodies]
    offsets, shared_bytes = offsets_of(shared)
    names = tuple(b.name for b in buffers)
    return module_text(visible, target), PieceCode(names, (*offsets.items(),), shared_bytes, private_bytes, (*codes,))


def emit_entries(func: Func, pieces: Sequence[tuple[Piece, PieceCode]], target: Target, threads: int) -> KernelSource:
    """The entry points of a kernel of these pieces, in a module that needs theirs. `func`: its concrete nest, of which
    the buffers count."""
    packed, packed_bytes = offsets_of(func.prepared)
    numbers = {b.name: n for n, b in enumerate(func.params)}
    parts, workspace_bytes = list[str](), 0
    for piece, code in pieces:
        name = f"{func.name}.prepare" if piece.ahead else func.name
        entry = EntryPoint(
            name, code.buffers, numbers, packed, dict(code.offsets), code.shared_bytes, code.private_bytes, threads,
            target,
        )  # fmt: skip
        check_workspace(name, func.params, entry.workspace_bytes)
        workspace_bytes = max(workspace_bytes, entry.workspace_bytes)
        nests = [_of_extent(nest, piece.extent) for nest in code.nests]
        parts += [*(_declared(nest, len(code.buffers)) for nest in nests), *entry.parts(nests)]
    return KernelSource(func.name, module_text(parts, target), workspace_bytes, threads, packed_bytes)


def _of_extent(nest: NestCode, extent: int | None) -> NestCode:
    return nest if extent is None else replace(nest, n_tasks=nest.n_tasks // ANY_EXTENT * extent)


def _declared(nest: NestCode, n_buffers: int) -> str:
    arguments = ", ".join(["ptr"] * (n_buffers + 1) + ["i64"])  # buffers, memory of the thread, the task
    names = (nest.name, f"{nest.name}.stream") if nest.non_temporal else (nest.name,)
    return "\n".join(f"declare hidden void @{name}({arguments})" for name in names)
