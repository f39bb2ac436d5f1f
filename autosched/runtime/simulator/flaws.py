"""Mistakes that a text shows without being run: what a compiler may move, and launches that their kernels do not allow.

The processor's compiler keeps the order of statements that nvcc may change, so no execution shows these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.codegen.c.source import Launch, TensorMap
from autosched.runtime.simulator.assembly import AssemblyStatement, find, statements
from autosched.runtime.simulator.instructions import Effect

_HELPER = re.compile(r"static __device__ __forceinline__ [\w ]+?(\w+)\s*\(")
_KERNEL = re.compile(r'extern "C" __global__')
_PRODUCT = "wgmma.mma_async"
_PREDICATES = ("setp.", "selp.", ".reg")


@dataclass(frozen=True)
class Flaw:
    """A mistake of a `kind` of KINDS, in words, in a `line` of the text, 0 for none, that is `code`."""

    kind: str
    words: str
    line: int = 0
    code: str = ""


def flaws_of_text(text: str) -> tuple[Flaw, ...]:
    """Return what a compiler may move or leave out that must stay. Raises UsageError for PTX that the runtime lacks."""
    return (*_movable(text), *_unkept(text))


def _movable(text: str) -> Iterator[Flaw]:
    for statement in statements(text):
        names = [name for name in statement.opcodes if not name.startswith(_PREDICATES)]
        effects = [find(name)[0].effect for name in names] or [Effect.MEMORY]
        line = text.count("\n", 0, statement.start) + 1
        place = line, text.splitlines()[line - 1].strip()
        what = names[0] if names else "a barrier for the compiler"
        if not statement.is_volatile and any(effect is not Effect.VALUE for effect in effects):
            yield Flaw("movable", f"{what} is not volatile", *place)
        elif Effect.MEMORY in effects and not statement.clobbers_memory:
            yield Flaw("movable", f'{what} does not name "memory", so that loads and stores may pass it', *place)


def _unkept(text: str) -> Iterator[Flaw]:
    """Results of products by warpgroups that may be read before the wait for them: no statement after it has them as an
    operand."""
    helpers = dict(_helpers(text))
    products = [name for name, statement in helpers.items() if _PRODUCT in "".join(statement.opcodes)]
    keeps = [name for name, statement in helpers.items() if not statement.opcodes]
    if not products:
        return
    for kernel in _KERNEL.split(text)[1:]:
        calls = re.finditer(rf"\b(?:{'|'.join(products)})\(([^;]*);", kernel)
        results = {
            name for call in calls for name in re.findall(r"&(\w+)\[", call[1].partition("matrix_descriptor")[0])
        }
        for name in sorted(results):
            if not keeps or not re.search(rf"\b(?:{'|'.join(keeps)})\({name}\[", kernel):
                yield Flaw("movable", f"{name} may be read before the wait for its products: nothing keeps it there")


def _helpers(text: str) -> Iterator[tuple[str, AssemblyStatement]]:
    """Yield the functions of a text that are one `asm` statement, by name."""
    functions = list(_HELPER.finditer(text))
    ends = [*(f.start() for f in functions[1:]), len(text)]
    for function, end in zip(functions, ends, strict=False):
        for statement in statements(text[function.start() : end]):
            yield function[1], statement
            break


def flaws_of_launch(
    launch: Launch, parameters: Sequence[str], most_threads: int, earlier: frozenset[str]
) -> Iterator[Flaw]:
    """Yield what a kernel's declaration does not allow: threads beyond its launch bounds, 0 for none, and pointers
    declared __restrict__ to what others write meanwhile. `earlier`: what the launches before may still write, nothing
    where it is not early.
    """
    threads = math.prod(launch.block)
    if most_threads and threads > most_threads:
        yield Flaw("refused", f"{launch.kernel} has bounds of {most_threads} threads, and blocks of {threads}")
    pointers = [(a, p) for a, p in zip(launch.arguments, parameters, strict=True) if not isinstance(a, TensorMap)]
    by_engine = {a.buffer for a in launch.arguments if isinstance(a, TensorMap)} & set(launch.writes)
    for buffer, parameter in pointers:
        others = [p for b, p in pointers if b == buffer and p != parameter]
        is_shared = buffer in by_engine or (others and any("const " not in p for p in (parameter, *others)))
        if "__restrict__" in parameter and (is_shared or buffer in earlier):
            yield Flaw(
                "early" if buffer in earlier else "race",
                f"{launch.kernel} has {parameter!r}, which says that nobody writes {buffer} while it runs: loads may "
                "precede the wait for who does",
            )
