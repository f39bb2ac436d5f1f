"""Runs the texts for processors that this machine is not: vectors in LLVM may be wider than the registers.

What only AVX-512 has are some intrinsics (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2). Here
they are functions in LLVM IR, lane by lane. So the texts for wide processors are checked on a narrow one; what LLVM
makes of them for their own processor is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from autosched.codegen.source import function_attributes
from autosched.runtime.jit import CODEGEN_LEVEL, compile_object
from autosched.target import Target, parse_target

HOST = parse_target("cpu")
PREFIX = "elsewhere."
_CALL = re.compile(r"call <(\d+) x (\w+)> @llvm\.x86\.(avx512[\w.]+)\(")
_DECLARATION = re.compile(r"^declare .*@llvm\.x86\.avx512.*\n", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^attributes #0 = .*$", re.MULTILINE)
# What LLVM calls to round a float where no instruction does: to nearest, to even in the middle.
_TO_BFLOAT = """
define hidden bfloat @__truncsfbf2(float %x) #0 {
  %bits = bitcast float %x to i32
  %shifted = lshr i32 %bits, 16
  %odd = and i32 %shifted, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %rounded = lshr i32 %sum, 16
  %quiet = or i32 %shifted, 64
  %nan = fcmp uno float %x, %x
  %word = select i1 %nan, i32 %quiet, i32 %rounded
  %short = trunc i32 %word to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""


def can_run(target: Target) -> bool:
    """Whether `compile_here` gives code for this machine: intrinsics of AVX2 are not replaced."""
    return target.runs_here or (target.kind == "cpu" and HOST.has("avx2"))


def compile_here(ir: str, target: Target, level: int = CODEGEN_LEVEL) -> bytes:
    """The object file of a text for `target` that this machine can run; of one for another machine, whose code will be
    something else, with as little optimisation as LLVM has."""
    return compile_object(ir, target, level) if target.runs_here else compile_object(emulated(ir), HOST, 0)


def emulated(ir: str) -> str:
    """The text without intrinsics of AVX-512, for the host."""
    calls = sorted({(name, int(lanes), element) for lanes, element, name in _CALL.findall(ir)})
    attributes = f"attributes #0 = {{ {function_attributes(HOST)} }}"
    text = _ATTRIBUTES.sub(attributes, _DECLARATION.sub("", ir)).replace("@llvm.x86.avx512", f"@{PREFIX}avx512")
    return "\n".join([text, _TO_BFLOAT, *(_definition(*call) for call in calls)])


def _definition(name: str, lanes: int, element: str) -> str:
    """LLVM IR of the intrinsic `llvm.x86.<name>` with that result."""
    stem = next(s for s in BODIES if name.startswith(s))
    parameters, body = BODIES[stem](lanes, element)
    return f"define internal <{lanes} x {element}> @{PREFIX}{name}({parameters}) #0 {{\n{body}\n}}"


class _Lanes:
    """Writes a function that does the same in each lane; `%r` at the end."""

    def __init__(self, lanes: int, element: str) -> None:
        self.lanes, self.element = lanes, element
        self.lines: list[str] = []
        self.word = {"float": "i32", "double": "i64"}.get(element, element)
        self.suffix = {"float": "f32", "double": "f64"}.get(element, element)

    def each(self, lane: Callable[[int], str]) -> str:
        """`lane(n)` adds the lines for lane n and returns its value."""
        vector = f"<{self.lanes} x {self.element}>"
        value = "poison"
        for n in range(self.lanes):
            element = lane(n)
            self.emit(f"%r{n} = insertelement {vector} {value}, {self.element} {element}, i32 {n}")
            value = f"%r{n}"
        self.emit(f"ret {vector} {value}")
        return "\n".join(self.lines)

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def take(self, name: str, vector: str, of: str, n: int) -> str:
        """Element n of an argument `<lanes x of>`."""
        taken = f"%{name}{n}"
        self.emit(f"{taken} = extractelement {vector} %{name}, i32 {n}")
        return taken


def _scalef(lanes: int, element: str) -> tuple[str, str]:
    """x * 2**floor(y)."""
    w, v = _Lanes(lanes, element), f"<{lanes} x {element}>"
    t, s = element, w.suffix

    def lane(n: int) -> str:
        x, y = w.take("x", v, t, n), w.take("y", v, t, n)
        w.emit(f"%down{n} = call {t} @llvm.floor.{s}({t} {y})")
        w.emit(f"%power{n} = call i32 @llvm.fptosi.sat.i32.{s}({t} %down{n})")
        w.emit(f"%big{n} = icmp sgt i32 %power{n}, 9999")
        w.emit(f"%most{n} = select i1 %big{n}, i32 9999, i32 %power{n}")
        w.emit(f"%small{n} = icmp slt i32 %most{n}, -9999")
        w.emit(f"%exponent{n} = select i1 %small{n}, i32 -9999, i32 %most{n}")
        w.emit(f"%scaled{n} = call {t} @llvm.ldexp.{s}.i32({t} {x}, i32 %exponent{n})")
        w.emit(f"%nan{n} = fcmp uno {t} {y}, {y}")
        w.emit(f"%result{n} = select i1 %nan{n}, {t} {y}, {t} %scaled{n}")
        return f"%result{n}"

    return f"{v} %x, {v} %y, {v}, i{lanes}, i32", w.each(lane)


def _range(lanes: int, element: str) -> tuple[str, str]:
    """The smaller magnitude, the number where the other is none, with the sign of x: what control 2 says."""
    w, v = _Lanes(lanes, element), f"<{lanes} x {element}>"
    t, s = element, w.suffix

    def lane(n: int) -> str:
        x, y = w.take("x", v, t, n), w.take("y", v, t, n)
        w.emit(f"%a{n} = call {t} @llvm.fabs.{s}({t} {x})")
        w.emit(f"%b{n} = call {t} @llvm.fabs.{s}({t} {y})")
        w.emit(f"%least{n} = call {t} @llvm.minnum.{s}({t} %a{n}, {t} %b{n})")
        w.emit(f"%signed{n} = call {t} @llvm.copysign.{s}({t} %least{n}, {t} {x})")
        return f"%signed{n}"

    return f"{v} %x, {v} %y, i32, {v}, i{lanes}, i32", w.each(lane)


def _fixupimm(lanes: int, element: str) -> tuple[str, str]:
    """x, but y where y is NaN: what the table 0x22 says."""
    w, v = _Lanes(lanes, element), f"<{lanes} x {element}>"

    def lane(n: int) -> str:
        x, y = w.take("x", v, element, n), w.take("y", v, element, n)
        w.emit(f"%nan{n} = fcmp uno {element} {y}, {y}")
        w.emit(f"%result{n} = select i1 %nan{n}, {element} {y}, {element} {x}")
        return f"%result{n}"

    return f"{v} %x, {v} %y, <{lanes} x {w.word}>, i32, i{lanes}, i32", w.each(lane)


def _vpermi2var(lanes: int, element: str) -> tuple[str, str]:
    """The element of the two tables, one behind the other, at the low bits of the index."""
    w, v = _Lanes(lanes, element), f"<{lanes} x {element}>"
    table = f"<{2 * lanes} x {element}>"
    order = ", ".join(f"i32 {n}" for n in range(2 * lanes))
    w.emit(f"%table = shufflevector {v} %low, {v} %high, <{2 * lanes} x i32> <{order}>")

    def lane(n: int) -> str:
        index = w.take("at", f"<{lanes} x {w.word}>", w.word, n)
        w.emit(f"%place{n} = and {w.word} {index}, {2 * lanes - 1}")
        w.emit(f"%result{n} = extractelement {table} %table, {w.word} %place{n}")
        return f"%result{n}"

    return f"{v} %low, <{lanes} x {w.word}> %at, {v} %high", w.each(lane)


def _pmaddwd(lanes: int, element: str) -> tuple[str, str]:
    """a[2 n] * b[2 n] + a[2 n + 1] * b[2 n + 1] of signed words."""
    words = f"<{2 * lanes} x i16>"
    w = _Lanes(lanes, element)

    def lane(n: int) -> str:
        return _products(w, n, ("a", words, "i16", "sext"), ("b", words, "i16", "sext"), 2, "0")

    return f"{words} %a, {words} %b", w.each(lane)


def _vpdpbusd(lanes: int, element: str) -> tuple[str, str]:
    """c[n] + the products of four unsigned with four signed bytes."""
    w, v, octets = _Lanes(lanes, element), f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    w.emit(f"%a = bitcast {v} %aw to {octets}")
    w.emit(f"%b = bitcast {v} %bw to {octets}")

    def lane(n: int) -> str:
        return _products(w, n, ("a", octets, "i8", "zext"), ("b", octets, "i8", "sext"), 4, w.take("c", v, "i32", n))

    return f"{v} %c, {v} %aw, {v} %bw", w.each(lane)


def _products(
    w: _Lanes, n: int, a: tuple[str, str, str, str], b: tuple[str, str, str, str], depth: int, total: str
) -> str:
    for k in range(n * depth, n * depth + depth):
        for name, vector, of, extend in (a, b):
            w.emit(f"%{name}wide{k} = {extend} {of} {w.take(name, vector, of, k)} to i32")
        w.emit(f"%product{k} = mul i32 %awide{k}, %bwide{k}")
        w.emit(f"%sum{k} = add i32 {total}, %product{k}")
        total = f"%sum{k}"
    return total


def _dpbf16ps(lanes: int, element: str) -> tuple[str, str]:
    """c[n] + a[2 n + 1] * b[2 n + 1] + a[2 n] * b[2 n]."""
    w, v, halves = _Lanes(lanes, element), f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"

    def lane(n: int) -> str:
        total = w.take("c", v, "float", n)
        for k in (2 * n + 1, 2 * n):
            for name in ("a", "b"):
                w.emit(f"%{name}wide{k} = fpext bfloat {w.take(name, halves, 'bfloat', k)} to float")
            w.emit(f"%sum{k} = call float @llvm.fma.f32(float %awide{k}, float %bwide{k}, float {total})")
            total = f"%sum{k}"
        return total

    return f"{v} %c, {halves} %a, {halves} %b", w.each(lane)


BODIES: dict[str, Callable[[int, str], tuple[str, str]]] = {
    "avx512.mask.scalef": _scalef,
    "avx512.mask.range": _range,
    "avx512.mask.fixupimm": _fixupimm,
    "avx512.vpermi2var": _vpermi2var,
    "avx512.pmaddw": _pmaddwd,
    "avx512.vpdpbusd": _vpdpbusd,
    "avx512bf16.dpbf16ps": _dpbf16ps,
}
