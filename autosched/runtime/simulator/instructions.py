"""The PTX instructions that can be executed on the processor: their names, their operands, the functions that do them.

A helper of generated CUDA C that holds PTX holds one of these instructions, and nothing else but what makes and reads a
predicate (`setp`, `selp`). Another instruction is a row here, a function in `native/instructions.h`, and a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PtxOperand(Enum):
    """How an operand becomes an argument."""

    VALUE = "a register or a number"
    RESULT = "the register that the function's value goes to"
    PREDICATE = "what setp made"
    VALUES = "registers in braces, which are read: an array"
    PLACES = "registers in braces, which are written, now or later: an array of pointers"
    NONE = "not passed on"


@dataclass(frozen=True)
class Instruction:
    """`pattern` is a regular expression for the name; `function` is one of C++, with what the pattern captures put in.

    `operands` in their order, those of an address one by one; the last `optional` may be left out.
    """

    pattern: str
    function: str
    operands: tuple[PtxOperand, ...] = ()
    optional: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        most = len(self.operands)
        return tuple(range(most - self.optional, most + 1))


V, R = PtxOperand.VALUE, PtxOperand.RESULT

INSTRUCTIONS: tuple[Instruction, ...] = (
    # numbers
    Instruction(r"(min|max)\.NaN\.f32", "{}_nan", (R, V, V)),
    Instruction(r"cvt\.f32\.f16", "float_of_half", (R, V)),
    Instruction(r"cvt\.rn\.f16\.f32", "half_of_float", (R, V)),
    Instruction(r"cvt\.rn\.bf16\.f32", "bfloat_of_float", (R, V)),
    # copies of single threads
    Instruction(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\d+B)?", "cp_async", (V, V, V, V), optional=1),
    Instruction(r"cp\.async\.commit_group", "cp_async_commit_group"),
    Instruction(r"cp\.async\.wait_group", "cp_async_wait_group", (V,)),
    Instruction(r"cp\.async\.wait_all", "cp_async_wait_all"),
)
