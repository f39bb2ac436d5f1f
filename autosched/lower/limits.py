"""Limits of a concrete nest: memory, launches and unrolled code.

A schedule of another user's record is correct in any size, but a large stack frame skips the guard page, and LLVM's
time grows with the text: 240 KB took 4 to 9 s on a busy machine. Nests are checked before any pass copies their code,
and once more after all passes.

The search stays below these limits by its own rules, which share the numbers for memory: its candidates for matrix
products, convolutions, rows and pools unrolled up to 385 statements and had up to 18 KB on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from autosched.errors import ScheduleError
from autosched.ir.expr import Const, Expr
from autosched.ir.instructions.matrices import MATRICES
from autosched.ir.stmt import (
    BLOCKS,
    THREADS,
    Allocate,
    Buffer,
    For,
    ForKind,
    Scope,
    Stmt,
    Store,
    shared_and_nests,
    walk,
)
from autosched.ir.storage import REGISTER_PAD, element_count
from autosched.ir.symbolic import FOLDS
from autosched.ir.visit import exprs_of, is_number, subexpressions

ON_STACK_BYTES = 16 << 10  # private buffers up to this size are on the stack, others in the workspace
MAX_STACK_BYTES = 1 << 20  # of one nest: a thread has 8 MB, on some systems less, and the caller needs some of it
MAX_LOCAL_BYTES = 8 << 20  # private buffers of one thread
MAX_WORKSPACE_BYTES = 4 << 30  # shared buffers and the private ones of all threads,
WORKSPACE_SHARE = 2  # or this multiple of the bytes of inputs and outputs, if that is more
MAX_STATEMENTS = 1 << 13  # in unrolled loops, vectors counted in 16 elements
MAX_NODES = 1 << 19  # of expressions in these; 50,000 make a text of 1.6 MB, for which LLVM takes up to 13 s
MAX_CHUNKS = 16  # unrolled vectors of a vectorised loop; longer ones are loops at run time
MAX_THREADS = 4096  # of a block, on any device
MAX_BLOCKS = (1 << 31) - 1  # along one axis of a grid


def check_nest(name: str, params: Sequence[Buffer], body: Stmt) -> None:
    """Raise ScheduleError where the body of the function `name` exceeds a limit."""
    shared, nests = shared_and_nests(body)
    check_workspace(name, params, sum(map(_bytes, shared)))
    for nest in nests:
        _check("statements written out", written_out(nest, lambda _: 1), MAX_STATEMENTS, nest, "unroll less")
        _check("nodes of expressions written out", written_out(nest, nodes), MAX_NODES, nest, "unroll less")
        _check("bytes of private buffers on the stack", stack_bytes(nest), MAX_STACK_BYTES, nest, "take smaller tiles")
        _check("bytes of private buffers", _local_bytes(nest), MAX_LOCAL_BYTES, nest, "take smaller tiles")
        threads = 1
        for loop in _bound(nest):
            if loop.kind in THREADS:
                threads *= _number(loop.bound)
            else:
                _check(f"blocks along {loop.kind.value}", _number(loop.bound), MAX_BLOCKS, nest, "bind a shorter loop")
        _check("threads in a block", threads, MAX_THREADS, nest, "bind shorter loops")


def check_workspace(name: str, params: Sequence[Buffer], n_bytes: int) -> None:
    """Raise ScheduleError for more workspace than a kernel of these parameters may have."""
    most = FOLDS["max"](MAX_WORKSPACE_BYTES, WORKSPACE_SHARE * sum(map(_bytes, params)))
    if n_bytes > most:
        raise ScheduleError(
            f"{name} needs {n_bytes} bytes of workspace, more than the {most} allowed: pack or tile less"
        )


def written_out(stmt: Stmt, size: Callable[[Store], int]) -> float:
    """Return the sum of the sizes of all stores after unrolling; a matrix product counts as one store."""
    if isinstance(stmt, Store):
        return size(stmt) / (MATRICES[stmt.matrix].updates if stmt.matrix else 1)
    return copies(stmt) * sum(written_out(inner, size) for inner in stmt.body_stmts)


def nodes(store: Store) -> int:
    """Return the number of expression nodes of a statement, to which its text is about proportional."""
    return len({node for expr in exprs_of(store) for node in subexpressions(expr)})


def copies(stmt: Stmt) -> int:
    """Return the number of copies of a statement's body after unrolling."""
    if not isinstance(stmt, For) or not isinstance(stmt.bound, Const):
        return 1
    if not is_number(stmt.extent if isinstance(stmt.extent, Const) else stmt.bound):
        return 1  # a loop at run time
    if stmt.kind is ForKind.UNROLL:
        return _number(stmt.bound)
    return min(MAX_CHUNKS, -(-_number(stmt.bound) // REGISTER_PAD)) if stmt.kind is ForKind.VECTORIZE else 1


def stack_bytes(stmt: Stmt) -> int:
    """Return the bytes of private buffers in the stack frame: each copy of a statement has its own."""
    own = _bytes(stmt.buffer) if isinstance(stmt, Allocate) and is_on_stack(stmt.buffer) else 0
    return own + copies(stmt) * sum(map(stack_bytes, stmt.body_stmts))


def is_on_stack(buffer: Buffer) -> bool:
    """Whether a buffer that a nest allocates on a processor is in the stack frame of its function."""
    nbytes = _bytes(buffer)
    return buffer.scope is Scope.REGISTER or (isinstance(nbytes, int) and nbytes <= ON_STACK_BYTES)


def _local_bytes(nest: Stmt) -> int:
    private = (s.buffer for s in walk(nest) if isinstance(s, Allocate) and s.buffer.scope is not Scope.REGISTER)
    return reduce(FOLDS["max"], map(_bytes, private), 0)


def _bound(nest: Stmt) -> Iterator[For]:
    return (s for s in walk(nest) if isinstance(s, For) and (s.kind in BLOCKS or s.kind in THREADS))


def _bytes(buffer: Buffer) -> int:
    return element_count(buffer) * buffer.itemsize


def _number(bound: Expr) -> int:
    assert isinstance(bound, Const)
    return bound.number


def _check(what: str, amount: float, most: int, nest: Stmt, advice: str) -> None:
    if amount > most:
        stage = next((s.stage for s in reversed(list(walk(nest))) if isinstance(s, Store)), "a stage")
        raise ScheduleError(f"the nest of {stage} has {amount:.0f} {what}, more than the {most} allowed: {advice}")
