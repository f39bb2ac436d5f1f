"""What code generation hands to the runtime: one kernel as LLVM IR text."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.target import Target


@dataclass(frozen=True)
class KernelSource:
    """`ir` exports `i32 @<name>(ptr args, ptr workspace, i64 nthreads)`, which returns 0.

    `args` points to one pointer per input, then one per output; `workspace` is 64-byte aligned scratch of
    `workspace_bytes`, enough for a call with `threads` threads.
    """

    name: str
    ir: str
    workspace_bytes: int
    threads: int

    @property
    def text(self) -> str:
        return self.ir

    @property
    def suffix(self) -> str:
        """Of a file with the text."""
        return ".ll"


def function_attributes(target: Target) -> str:
    """The attributes every function of a kernel carries: processor, features and the full vector width."""
    bits = 8 * target.vector_bytes
    features = f'"target-features"="{target.features}" ' if target.features else ""
    return (
        f'nounwind "target-cpu"="{target.mcpu}" {features}'
        f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    )
