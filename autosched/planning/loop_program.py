"""Execution plan of a loop: a program of its own for the body, and where the body finds its arrays in each iteration.

    i32 @NAME(ptr args, ptr workspace, i64 nthreads)      args: what the loop reads, its results, the body's weights

A result that consists of rows is written where each row is. A state that is no such row alternates between the result
of the loop, where the last iteration writes it, and a copy in the workspace, behind the arena of the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from autosched.codegen.calls import ARENA, ARGUMENT, LoopArgument, Pointer
from autosched.codegen.llvm.program import emit_loop, emit_program
from autosched.graph.graph import Graph
from autosched.graph.loops import BACKWARDS, LAST, WHOLE, GraphLoop, loop_of
from autosched.graph.memory.buffers import aligned
from autosched.graph.memory.storage import Home, StorageError, nbytes_of
from autosched.graph.steps import Repeat
from autosched.target import Target

if TYPE_CHECKING:
    from autosched.planning.execution_plan import NetworkProgram

ALIGNMENT = 64  # bytes, of states in the workspace


@dataclass(frozen=True)
class LoopProgram:
    """The plan of a loop. `graph`: the graph that it is in. `body`: the program of an iteration. `weights_at`: the byte
    of the network's block of weights where that of the body begins."""

    graph: Graph
    step: Repeat
    body: NetworkProgram
    weights_at: int

    @property
    def symbol(self) -> str:
        return self.body.symbol.removesuffix(BODY)

    @cached_property
    def loop(self) -> GraphLoop:
        return loop_of(self.step.node)

    @property
    def _carried(self) -> set[int]:
        """The numbers of the outputs of the body that are states."""
        return {read for read in self.loop.operands if isinstance(read, int)}

    @cached_property
    def _second_homes(self) -> dict[int, int]:
        """The bytes of the workspace where states are in every other iteration, by the number of the output."""
        homes, end = dict[int, int](), aligned(self.body.workspace_bytes, ALIGNMENT)
        for n in sorted(self._carried):
            if self.loop.results[n] == LAST:
                homes[n] = end
                end += aligned(self._output_bytes(n), ALIGNMENT)
        return homes

    @property
    def workspace_bytes(self) -> int:
        ends = (at + self._output_bytes(n) for n, at in self._second_homes.items())
        return max((self.body.workspace_bytes, *ends))

    def _output_bytes(self, number: int) -> int:
        return nbytes_of(self.body.graph, self.body.graph.outputs[number])

    def _output(self, number: int) -> LoopArgument:
        """Return where the body writes an output."""
        result, kind = Pointer(ARGUMENT, len(self.step.operands) + number), self.loop.results[number]
        if kind != LAST:
            return _rows(result, kind, self.loop.steps, self._output_bytes(number))
        if number not in self._second_homes:
            return LoopArgument(result)
        sides = result, Pointer(ARENA, self._second_homes[number])
        even, odd = sides if self.loop.steps % 2 else sides[::-1]
        return LoopArgument(even, odd=odd)

    @cached_property
    def arguments(self) -> tuple[LoopArgument, ...]:
        """Where the body finds its inputs, outputs and weights."""
        arguments: list[LoopArgument] = []
        for n, ((_, read), own) in enumerate(zip(self.step.operands, self.body.graph.inputs, strict=True)):
            operand = Pointer(ARGUMENT, n)
            if isinstance(read, int):
                after = self._output(read)
                arguments.append(LoopArgument(after.pointer, after.stride, after.odd, first=operand))
            elif read == WHOLE:
                arguments.append(LoopArgument(operand))
            else:
                arguments.append(_rows(operand, read, self.loop.steps, nbytes_of(self.body.graph, own)))
        arguments += map(self._output, range(len(self.loop.results)))
        return (*arguments, LoopArgument(Pointer(ARGUMENT, len(self.step.operands) + len(self.loop.results))))

    def module(self, target: Target) -> str:
        """Return LLVM IR of the functions of the body and of the loop."""
        body = self.body
        n_arguments = len(body.graph.inputs) + len(body.graph.outputs)
        text, _ = emit_program(body.symbol, tuple(body.calls()), n_arguments, target, tuple(body.copies()))
        return text + emit_loop(self.symbol, body.symbol, self.arguments, self.loop.steps)

    def constant(self, name: str) -> str:
        """Return the name that a constant of the body has among those of the network around it."""
        return f"{self.symbol} {name}"

    def verify(self) -> None:
        """Check that each iteration reads the rows and states that it should, overwrites none of them, writes each row
        of a result once, and leaves the last states in the results. Raises StorageError.

        Addresses are linear in the number of the iteration, apart for odd and even ones, so that what holds for the
        first and the last iterations holds for all.
        """
        steps = self.loop.steps
        for step in sorted({*range(min(3, steps)), *range(max(0, steps - 2), steps)}):
            self._verify_iteration(step)
        for n, kind in enumerate(self.loop.results):
            home, stride = self._homes(steps - 1)[len(self.body.graph.inputs) + n], self._output(n).stride
            result = self._whole(len(self.step.operands) + n)
            if kind == LAST and home != result:
                raise StorageError(f"{self.symbol} would leave its last state at {home}, not at {result}")
            if kind != LAST and (abs(stride) != home.nbytes or steps * home.nbytes != result.nbytes):
                raise StorageError(f"{self.symbol} would write rows {stride} bytes apart to {result}")

    def _verify_iteration(self, step: int) -> None:
        homes, n_inputs = self._homes(step), len(self.body.graph.inputs)
        for n, home in enumerate(homes):
            whole = Home((ARENA, 0), 0, self.workspace_bytes)
            if home.buffer[0] == ARGUMENT:
                whole = self._whole(home.buffer[1])
            elif home.start < self.body.workspace_bytes:
                raise StorageError(f"{self.symbol} would have a state at {home}, which the kernels of its body write")
            if home.start < 0 or home.start + home.nbytes > whole.nbytes:
                raise StorageError(f"iteration {step} of {self.symbol} would have an array at {home}, beyond {whole}")
            for other in homes[:n] if n >= n_inputs else ():
                if home.overlaps(other):
                    raise StorageError(f"iteration {step} of {self.symbol} would write {home}, over {other}")
        before = self._homes(step - 1)[n_inputs:] if step else ()
        for n, (_, read) in enumerate(self.step.operands):
            if isinstance(read, int) and homes[n] != (before[read] if before else self._whole(n)):
                raise StorageError(f"iteration {step} of {self.symbol} would read a state at {homes[n]}, not its own")

    def _homes(self, step: int) -> list[Home]:
        """Return where inputs and outputs of the body are in an iteration."""
        graph = self.body.graph
        pairs = zip((*graph.inputs, *graph.outputs), self.arguments, strict=False)
        return [_home(argument.at(step), nbytes_of(graph, name)) for name, argument in pairs]

    def _whole(self, number: int) -> Home:
        """Return an argument of the loop."""
        return Home((ARGUMENT, number), 0, nbytes_of(self.graph, (*self.step.reads, *self.step.outputs)[number]))


BODY = ".body"


def loop_modules(program: NetworkProgram, target: Target) -> list[str]:
    """Return LLVM IR of the functions of all loops of a program, a module for each."""
    return [loop.module(target) for each in program.programs for loop in each.loops.values()]


def _rows(array: Pointer, kind: str, steps: int, nbytes: int) -> LoopArgument:
    """Return the rows of an array, of `nbytes` each, forwards or backwards."""
    if kind == BACKWARDS:
        return LoopArgument(array.moved((steps - 1) * nbytes), -nbytes)
    return LoopArgument(array, nbytes)


def _home(pointer: Pointer, nbytes: int) -> Home:
    if pointer.place == ARGUMENT:
        return Home((ARGUMENT, pointer.at), pointer.offset, nbytes)
    return Home((pointer.place, 0), pointer.at, nbytes)
