"""Translation of inline PTX in CUDA C to calls of the runtime: `asm volatile("cp.async..." : : "r"(to), ...);`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosched.errors import UsageError
from autosched.runtime.simulator.instructions import INSTRUCTIONS, Instruction, PtxOperand

TYPES = {"r": "unsigned", "l": "unsigned long long", "f": "float", "h": "unsigned short", "d": "double", "n": "int"}
SPECIAL = {"cluster_ctarank": "simulator::simulator_rank()", "laneid": "threadIdx.x % 32"}  # registers of PTX
_ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PLAIN = re.compile(r"(?:0x)?[0-9a-fA-F]+|-\d+")
_PREDICATE = re.compile(r"[a-z]\w*")


@dataclass(frozen=True)
class Bound:
    """An operand of the statement: its constraint and the C expression."""

    constraint: str
    expression: str

    @property
    def type(self) -> str:
        return TYPES[self.constraint.lstrip("=+")]

    @property
    def is_written(self) -> bool:
        return self.constraint[0] in "=+"


def translate_assembly(text: str) -> str:
    """Return the text with a block of calls for each `asm` statement; the number of lines stays the same.

    Raises UsageError for PTX that the runtime lacks.
    """
    parts, end = [], 0
    for statement in statements(text):
        inside = statement.inside
        parts += [text[end : statement.start], _calls(inside), "\n" * inside.count("\n")]
        end = statement.end + (text[statement.end : statement.end + 1] == ";")
    return "".join([*parts, text[end:]])


@dataclass(frozen=True)
class AssemblyStatement:
    """An `asm` statement: its place in the text, and what is in its parentheses."""

    start: int
    end: int
    inside: str
    is_volatile: bool

    @property
    def opcodes(self) -> list[str]:
        """The names of its instructions."""
        return [s.split(None, 1)[0] for s in _instructions(_split(self.inside, ":")[0])]

    @property
    def clobbers_memory(self) -> bool:
        return '"memory"' in "".join(_split(self.inside, ":")[3:])


def statements(text: str) -> Iterator[AssemblyStatement]:
    """Yield the `asm` statements of a text in order."""
    end = 0
    for found in _ASM.finditer(text):
        if found.start() < end:
            continue
        close = _closing(text, found.end() - 1)
        end = close + 1
        yield AssemblyStatement(found.start(), end, text[found.end() : close], "volatile" in found[0])


def _closing(text: str, at: int) -> int:
    """Return the position of the parenthesis that closes the one at `at`."""
    depth = 0
    while True:
        if text[at] == '"':
            match = _STRING.match(text, at)
            assert match is not None
            at = match.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1


def _split(text: str, mark: str) -> list[str]:
    """Split a text at marks outside of strings and parentheses."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == '"':
            match = _STRING.match(text, at)
            assert match is not None
            at = match.end()
        elif text[at] in "([{":
            at = _closing(text, at) + 1 if text[at] == "(" else text.index({"[": "]", "{": "}"}[text[at]], at) + 1
        elif text[at] == mark:
            parts.append(text[begin:at])
            begin = at = at + 1
        else:
            at += 1
    return [p.strip() for p in (*parts, text[begin:])]


def _calls(inside: str) -> str:
    """Return the calls for the text in the parentheses of `asm`."""
    template, *sections = _split(inside, ":")
    bound = [_bound(x) for section in sections[:2] for x in _split(section, ",") if x]
    return "{ " + " ".join(_statement(s, bound) for s in _instructions(template)) + " }"


def _instructions(template: str) -> list[str]:
    """Return the instructions in the strings of a template."""
    body = "".join(bytes(s, "ascii").decode("unicode_escape") for s in _STRING.findall(template)).strip()
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1]
    return [s.strip() for s in body.split(";") if s.strip()]


def _bound(text: str) -> Bound:
    match = _STRING.match(text)
    assert match is not None
    inner = text[match.end() :].strip()
    return Bound(match[1], inner[1:-1])


def _statement(text: str, bound: Sequence[Bound]) -> str:
    opcode, *rest = text.split(None, 1)
    operands = _split(rest[0].strip(), ",") if rest else []
    if opcode == ".reg":
        return " ".join(f"bool {name} = false;" for name in text.replace(",", " ").split()[2:])
    if opcode.startswith("setp."):
        return _comparison(opcode, operands, bound)
    if opcode.startswith("selp."):
        to, yes, no, predicate = (_value(x, bound) for x in operands)
        return f"{to} = {predicate} ? {yes} : {no};"
    instruction, words = find(opcode)
    return _call(instruction, words, operands, bound)


def find(opcode: str) -> tuple[Instruction, tuple[str | None, ...]]:
    """Return the row of an instruction and the groups of its pattern. Raises UsageError for an unknown instruction."""
    for instruction in INSTRUCTIONS:
        match = re.fullmatch(instruction.pattern, opcode)
        if match is not None:
            return instruction, match.groups()
    raise UsageError(
        f"the PTX instruction {opcode} cannot be executed on the processor: add a row for it to "
        "autosched/runtime/simulator/instructions.py"
    )


def _comparison(opcode: str, operands: Sequence[str], bound: Sequence[Bound]) -> str:
    signs = {"ne": "!=", "eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    to, a, b = (_value(x, bound) for x in operands)
    return f"{to} = {a} {signs[opcode.split('.')[1]]} {b};"


def _value(operand: str, bound: Sequence[Bound]) -> str:
    """Return a register, a number or a predicate as C."""
    operand = operand.strip()
    if operand.startswith("%%"):
        return SPECIAL[operand[2:]]
    if operand.startswith("%"):
        chosen = bound[int(operand[1:])]
        value = f"({chosen.expression})"
        return value if chosen.is_written else f"simulator::given<{chosen.type}>{value}"
    if _PLAIN.fullmatch(operand) or _PREDICATE.fullmatch(operand):
        return operand
    raise UsageError(f"an operand of inline PTX must be %N, a number or a predicate, got {operand!r}")


def _call(
    instruction: Instruction, words: Sequence[str | None], operands: Sequence[str], bound: Sequence[Bound]
) -> str:
    before: list[str] = []
    flat = [x for operand in operands for x in _flattened(operand)]
    if len(flat) not in instruction.counts:
        wanted = " or ".join(map(str, instruction.counts))
        raise UsageError(f"{instruction.function} takes {wanted} operands in PTX, got {len(flat)}: {', '.join(flat)}")
    kinds = instruction.operands[: len(flat)]
    arguments = [_argument(kind, text, bound, before) for kind, text in zip(kinds, flat, strict=True)]
    chosen = ["false" if w is None else "true" if w.startswith(".") else w for w in words]
    name = instruction.function.format(*chosen)
    result = f"{_value(flat[0].rpartition('|')[2], bound)} = " if kinds[:1] == (PtxOperand.RESULT,) else ""
    return f"{''.join(before)}{result}simulator::{name}({', '.join(a for a in arguments if a)});"


def _flattened(operand: str) -> list[str]:
    """Return the operands of a list: an address with coordinates, `[map, {x, y}]`, is two of them."""
    operand = operand.strip()
    return _split(operand[1:-1], ",") if operand.startswith("[") else [operand]


def _argument(kind: PtxOperand, text: str, bound: Sequence[Bound], before: list[str]) -> str:
    match kind:
        case PtxOperand.NONE | PtxOperand.RESULT:
            return ""
        case PtxOperand.VALUE:
            return _value(text, bound)
        case PtxOperand.EITHER:
            return _held(text, bound, before) if text.startswith("{") else _value(text, bound)
        case PtxOperand.VALUES | PtxOperand.PLACES:
            return _list(kind, text, bound, before)


def _held(text: str, bound: Sequence[Bound], before: list[str]) -> str:
    """Registers that are read later: what they hold, and where they are if they are somewhere."""
    values = _list(PtxOperand.VALUES, text, bound, before)
    inner = [bound[int(x.strip()[1:])].expression for x in text.strip()[1:-1].split(",")]
    name = f"group_{len(before)}"
    places = ", ".join(f"simulator::place_of_value({x})" for x in inner)
    before.append(f"const unsigned* const {name}[{len(inner)}] = {{{places}}}; ")
    return f"{values}, {name}"


def _list(kind: PtxOperand, text: str, bound: Sequence[Bound], before: list[str]) -> str:
    """A group of registers as an array: of what they hold, or of where they are."""
    inner = [x.strip() for x in text.strip()[1:-1].split(",")] if text.strip().startswith("{") else [text.strip()]
    registers = [bound[int(x[1:])] if x.startswith("%") else Bound("r", x) for x in inner]
    name, count, form = f"group_{len(before)}", len(inner), registers[0].type
    if kind is PtxOperand.VALUES:
        before.append(
            f"const {form} {name}[{count}] = {{{', '.join(f'({form})({r.expression})' for r in registers)}}}; "
        )
    else:
        places = ", ".join(f"({form}*)&({r.expression})" for r in registers)  # PTX knows no signs
        before.append(f"{form}* const {name}[{count}] = {{{places}}}; ")
    return name
