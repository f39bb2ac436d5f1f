"""Protocols between the parts of the emitter: statements, values, and register tiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from autosched.ir.expr import Expr
from autosched.ir.stmt import For, Stmt

if TYPE_CHECKING:
    from autosched.codegen.llvm.address import Addresses
    from autosched.codegen.llvm.arithmetic import Arithmetic, Val
    from autosched.codegen.llvm.bindings import Bindings, LaneRange, Runtime
    from autosched.codegen.llvm.indices import Indices
    from autosched.codegen.llvm.stores import Stores
    from autosched.codegen.llvm.values import Values
    from autosched.codegen.llvm.writer import Writer
    from autosched.lower.register_tiles.context import TileContext


class StatementEmitter(Protocol):
    """The emitter of statements at the insertion point (`statements.py`)."""

    addresses: Addresses
    arithmetic: Arithmetic
    bindings: Bindings
    context: TileContext
    stores: Stores
    values: Values
    writer: Writer

    def emit(self, stmt: Stmt) -> None: ...

    def serial_loop(self, extent: Expr, body: Callable[[Runtime], None]) -> None: ...

    def vector(self, stmt: For, lanes: LaneRange, mask: str | None) -> None: ...

    def vector_rest(self, stmt: For, first: int, rest: int, width: int) -> None: ...


class ValueEmitter(Protocol):
    """The emitter of values at the insertion point (`values.py`)."""

    addresses: Addresses
    arithmetic: Arithmetic
    bindings: Bindings
    indices: Indices
    writer: Writer
    mask: str | None
    lanes: int
    guarded: bool
    in_window: bool

    def emit(self, expr: Expr) -> Val: ...

    def alone(self) -> AbstractContextManager[None]: ...

    def may_load(self, expr: Expr, depth: int) -> bool: ...

    def once(self, buffer: str, key: tuple[object, ...], load: Callable[[], Val]) -> Val: ...
