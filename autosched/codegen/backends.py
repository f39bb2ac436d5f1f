"""Emitters by target: the table EMITTERS has the path from a lowered schedule to code for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from autosched.codegen.c.source import GpuSource
from autosched.codegen.source import KernelSource

if TYPE_CHECKING:
    from autosched.ir.simplify import Simplifier
    from autosched.ir.stmt import Func
    from autosched.schedule import Step
    from autosched.target import Target

Source: TypeAlias = KernelSource | GpuSource


@dataclass(frozen=True)
class Origin:
    """What code was made from: the `title` of its workload, and the `steps` of its schedule with the `values` of their
    parameters."""

    title: str = ""
    steps: tuple[Step, ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What a reader of the code wants to know first; empty where nothing is known."""
        from autosched.schedule import steps_text

        return f"{self.title}\n{steps_text(self.steps, self.values)}" if self.title else ""


def build_source(
    nest: Func, values: Mapping[str, int], target: Target, threads: int = 1, origin: Origin | None = None
) -> Source:
    """The code of a lowered schedule with the values of its parameters."""
    from autosched.lower import concretise

    concrete, simplify = concretise(nest, values)
    return EMITTERS[target.kind](concrete, simplify, target, threads, origin or Origin())


def _llvm(func: Func, simplify: Simplifier, target: Target, threads: int, origin: Origin) -> KernelSource:
    from autosched.codegen.llvm.kernel import emit
    from autosched.schedule import largest_tile

    return replace(emit(func, simplify, target, threads), winograd=largest_tile(origin.steps))


def _c(func: Func, simplify: Simplifier, target: Target, threads: int, origin: Origin) -> GpuSource:
    from autosched.codegen.c.kernel import emit

    return emit(func, simplify, target.kind, origin.text)


# The kind of a target -> what makes a concrete function's code. Of those in C, `c.dialects` has the words.
EMITTERS: dict[str, Callable[[Func, Simplifier, Target, int, Origin], Source]] = {
    "cpu": _llvm,
    "cuda": _c,
    "opencl": _c,
}
