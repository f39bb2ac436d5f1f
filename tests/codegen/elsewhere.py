"""Runs the texts for processors that this machine is not: vectors in LLVM may be wider than the registers.

What only AVX-512 has are some intrinsics (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2). Here
they are functions in LLVM IR. So the texts for wide processors are checked on a narrow one; what LLVM
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
define weak hidden bfloat @__truncsfbf2(float %x) #0 {
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
    parameters, lines = BODIES[stem](lanes, element)
    body = "".join(f"  {line}\n" for line in (*lines, f"ret <{lanes} x {element}> %r"))
    return f"define internal <{lanes} x {element}> @{PREFIX}{name}({parameters}) #0 {{\n{body}}}"


Body = tuple[str, list[str]]  # parameters, and the lines that make %r


def _of_floats(lanes: int, element: str) -> tuple[str, str, str]:
    """(the vector, the vector of as long integers, how names of LLVM's own functions for it end)."""
    bits = {"float": 32, "double": 64, "i16": 16}[element]
    return f"<{lanes} x {element}>", f"<{lanes} x i{bits}>", f"v{lanes}f{bits}"


def _scalef(lanes: int, element: str) -> Body:
    """x * 2**floor(y)."""
    v, _, s = _of_floats(lanes, element)
    i, ends = f"<{lanes} x i32>", f"v{lanes}i32"
    return f"{v} %x, {v} %y, {v}, i{lanes}, i32", [
        f"%down = call {v} @llvm.floor.{s}({v} %y)",
        f"%power = call {i} @llvm.fptosi.sat.{ends}.{s}({v} %down)",
        f"%most = call {i} @llvm.smin.{ends}({i} %power, {i} splat (i32 9999))",
        f"%n = call {i} @llvm.smax.{ends}({i} %most, {i} splat (i32 -9999))",
        f"%scaled = call {v} @llvm.ldexp.{s}.{ends}({v} %x, {i} %n)",
        f"%nan = fcmp uno {v} %y, %y",
        f"%r = select <{lanes} x i1> %nan, {v} %y, {v} %scaled",
    ]


def _range(lanes: int, element: str) -> Body:
    """The smaller magnitude, the number where the other is none, with the sign of x: what control 2 says."""
    v, _, s = _of_floats(lanes, element)
    return f"{v} %x, {v} %y, i32, {v}, i{lanes}, i32", [
        f"%a = call {v} @llvm.fabs.{s}({v} %x)",
        f"%b = call {v} @llvm.fabs.{s}({v} %y)",
        f"%least = call {v} @llvm.minnum.{s}({v} %a, {v} %b)",
        f"%r = call {v} @llvm.copysign.{s}({v} %least, {v} %x)",
    ]


def _fixupimm(lanes: int, element: str) -> Body:
    """x, but y where y is NaN: what the table 0x22 says."""
    v, i, _ = _of_floats(lanes, element)
    return f"{v} %x, {v} %y, {i}, i32, i{lanes}, i32", [
        f"%nan = fcmp uno {v} %y, %y",
        f"%r = select <{lanes} x i1> %nan, {v} %y, {v} %x",
    ]


def _getexp(lanes: int, element: str) -> Body:
    """The exponent of x as a number of the same type; -infinity for 0, infinity for infinities."""
    v, _, s = _of_floats(lanes, element)
    return f"{v} %x, {v}, i{lanes}, i32", [
        *_taken_apart(lanes, element),
        f"%power = sitofp <{lanes} x i32> %e to {v}",
        f"%e.1 = fsub {v} %power, splat ({element} 1.0)",
        f"%log = call {v} @llvm.log2.{s}({v} %a)",  # of 0, infinities and NaN
        f"%r = select <{lanes} x i1> %usual, {v} %e.1, {v} %log",
    ]


def _getmant(lanes: int, element: str) -> Body:
    """x / 2**getexp(x), from 1 to 2; 1 for 0 and infinity, NaN for what is negative: what control 12 says."""
    v, _, _ = _of_floats(lanes, element)
    return f"{v} %x, i32, {v}, i{lanes}, i32", [
        *_taken_apart(lanes, element),
        f"%twice = fadd {v} %m, %m",
        f"%one = select <{lanes} x i1> %usual, {v} %twice, {v} splat ({element} 1.0)",
        f"%none = fcmp ult {v} %x, zeroinitializer",
        f"%r = select <{lanes} x i1> %none, {v} splat ({element} 0x7FF8000000000000), {v} %one",
    ]


def _taken_apart(lanes: int, element: str) -> list[str]:
    """Lines that make %a, |x|, %m and %e with a = m * 2**e and m from 1/2 to 1, and %usual: where x has them."""
    v, _, s = _of_floats(lanes, element)
    both, ends = f"{{ {v}, <{lanes} x i32> }}", f"{s}.v{lanes}i32"
    infinity = f"splat ({element} 0x7FF0000000000000)"
    return [
        f"%a = call {v} @llvm.fabs.{s}({v} %x)",
        f"%parts = call {both} @llvm.frexp.{ends}({v} %a)",
        f"%m = extractvalue {both} %parts, 0",
        f"%e = extractvalue {both} %parts, 1",
        f"%some = fcmp ogt {v} %a, zeroinitializer",
        f"%finite = fcmp olt {v} %a, {infinity}",
        f"%usual = and <{lanes} x i1> %some, %finite",
    ]


def _vpermi2var(lanes: int, element: str) -> Body:
    """The element of the two tables, one behind the other, at the low bits of the index."""
    v, i, _ = _of_floats(lanes, element)
    order = ", ".join(f"i32 {n}" for n in range(2 * lanes))
    table = f"%table = shufflevector {v} %low, {v} %high, <{2 * lanes} x i32> <{order}>"
    return f"{v} %low, {i} %at, {v} %high", [table, *_picked(lanes, element, 2 * lanes)]


def _permvar(lanes: int, element: str) -> Body:
    """The element of the table at the low bits of the index."""
    v, i, _ = _of_floats(lanes, element)
    return f"{v} %table, {i} %at", _picked(lanes, element, lanes)


def _picked(lanes: int, element: str, size: int) -> list[str]:
    """Lines that make %r: the elements of %table, of `size`, at the low bits of %at."""
    v, i, _ = _of_floats(lanes, element)
    word = i.split()[-1].rstrip(">")
    lines = [f"%place = and {i} %at, splat ({word} {size - 1})"]
    for n in range(lanes):
        before, after = f"%r{n}" if n else "poison", f"%r{n + 1}" if n + 1 < lanes else "%r"
        lines += [
            f"%p{n} = extractelement {i} %place, i32 {n}",
            f"%e{n} = extractelement <{size} x {element}> %table, {word} %p{n}",
            f"{after} = insertelement {v} {before}, {element} %e{n}, i32 {n}",
        ]
    return lines


def _parts(name: str, lanes: int, element: str, depth: int, extended: str) -> list[str]:
    """Lines that make %name0, %name1, ...: of each lane's `depth` elements of `%name` the first, the second, ..."""
    lines = []
    for k in range(depth):
        order = ", ".join(f"i32 {n * depth + k}" for n in range(lanes))
        whole = f"<{lanes * depth} x {element}>"
        lines += [
            f"%{name}s{k} = shufflevector {whole} %{name}, {whole} poison, <{lanes} x i32> <{order}>",
            f"%{name}{k} = {extended.split()[0]} <{lanes} x {element}> %{name}s{k} to <{lanes} x {extended.split()[1]}>",
        ]
    return lines


def _sums(lanes: int, depth: int, start: str) -> list[str]:
    """start + a0 b0 + a1 b1 + ... of integers."""
    v, total, lines = f"<{lanes} x i32>", start, []
    for k in range(depth):
        after = f"%sum{k}" if k + 1 < depth else "%r"
        lines += [f"%product{k} = mul {v} %a{k}, %b{k}", f"{after} = add {v} {total}, %product{k}"]
        total = after
    return lines


def _pmaddwd(lanes: int, element: str) -> Body:
    """a[2 n] * b[2 n] + a[2 n + 1] * b[2 n + 1] of signed words."""
    words = f"<{2 * lanes} x i16>"
    parts = [line for name in "ab" for line in _parts(name, lanes, "i16", 2, "sext i32")]
    return f"{words} %a, {words} %b", [*parts, *_sums(lanes, 2, "zeroinitializer")]


def _vpdpbusd(lanes: int, element: str) -> Body:
    """c[n] + the products of four unsigned with four signed bytes."""
    v, octets = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    return f"{v} %c, {v} %aw, {v} %bw", [
        f"%a = bitcast {v} %aw to {octets}",
        f"%b = bitcast {v} %bw to {octets}",
        *_parts("a", lanes, "i8", 4, "zext i32"),
        *_parts("b", lanes, "i8", 4, "sext i32"),
        *_sums(lanes, 4, "%c"),
    ]


def _vpdpwssd(lanes: int, element: str) -> Body:
    """c[n] + the products of two signed words with two others."""
    v, words = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    parts = [line for name in "ab" for line in _parts(name, lanes, "i16", 2, "sext i32")]
    casts = [f"%{name} = bitcast {v} %{name}w to {words}" for name in "ab"]
    return f"{v} %c, {v} %aw, {v} %bw", [*casts, *parts, *_sums(lanes, 2, "%c")]


def _dpbf16ps(lanes: int, element: str) -> Body:
    """c[n] + a[2 n + 1] * b[2 n + 1] + a[2 n] * b[2 n]."""
    v, halves = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    fma = f"call {v} @llvm.fma.v{lanes}f32"
    return f"{v} %c, {halves} %a, {halves} %b", [
        *_parts("a", lanes, "bfloat", 2, "fpext float"),
        *_parts("b", lanes, "bfloat", 2, "fpext float"),
        f"%odd = {fma}({v} %a1, {v} %b1, {v} %c)",
        f"%r = {fma}({v} %a0, {v} %b0, {v} %odd)",
    ]


def _cvtne2ps2bf16(lanes: int, element: str) -> Body:
    """The numbers of `low` and, behind them, of `high`, rounded to nearest."""
    v, order = f"<{lanes // 2} x float>", ", ".join(f"i32 {n}" for n in range(lanes))
    return f"{v} %high, {v} %low", [
        f"%both = shufflevector {v} %low, {v} %high, <{lanes} x i32> <{order}>",
        f"%r = fptrunc <{lanes} x float> %both to <{lanes} x bfloat>",
    ]


def _cvtps2dq(lanes: int, element: str) -> Body:
    """x rounded half to even; the least number for what no integer is."""
    v, i = f"<{lanes} x float>", f"<{lanes} x {element}>"
    return f"{v} %x, {i}, i{lanes}, i32", [
        f"%even = call {v} @llvm.roundeven.v{lanes}f32({v} %x)",
        f"%whole = call {i} @llvm.fptosi.sat.v{lanes}i32.v{lanes}f32({v} %even)",
        f"%fits = fcmp olt {v} %even, splat (float 0x41E0000000000000)",  # 2**31
        f"%r = select <{lanes} x i1> %fits, {i} %whole, {i} splat ({element} {-(2**31)})",
    ]


def _packed(low: int, high: int) -> Callable[[int, str], Body]:
    """The numbers of x and y in half as many bits, within `low` and `high`: in each 128 bits those of x first."""

    def body(lanes: int, element: str) -> Body:
        bits, half = int(element[1:]), lanes // 2
        wide, narrow = f"<{half} x i{2 * bits}>", f"<{half} x {element}>"
        lines = []
        for x in "xy":
            lines += [
                f"%{x}.1 = call {wide} @llvm.smin.v{half}i{2 * bits}({wide} %{x}, {wide} splat (i{2 * bits} {high}))",
                f"%{x}.2 = call {wide} @llvm.smax.v{half}i{2 * bits}({wide} %{x}.1, {wide} splat (i{2 * bits} {low}))",
                f"%{x}.3 = trunc {wide} %{x}.2 to {narrow}",
            ]
        part = 64 // bits  # of one operand in 128 bits
        order = [k + n + of for k in range(0, half, part) for of in (0, half) for n in range(part)]
        mask = ", ".join(f"i32 {k}" for k in order)
        lines.append(f"%r = shufflevector {narrow} %x.3, {narrow} %y.3, <{lanes} x i32> <{mask}>")
        return f"{wide} %x, {wide} %y", lines

    return body


BODIES: dict[str, Callable[[int, str], Body]] = {
    "avx512.mask.cvtps2dq": _cvtps2dq,
    "avx512.packssdw": _packed(-(2**15), 2**15 - 1),
    "avx512.packuswb": _packed(0, 255),
    "avx512.packsswb": _packed(-128, 127),
    "avx512.mask.scalef": _scalef,
    "avx512.mask.range": _range,
    "avx512.mask.fixupimm": _fixupimm,
    "avx512.mask.getexp": _getexp,
    "avx512.mask.getmant": _getmant,
    "avx512.vpermi2var": _vpermi2var,
    "avx512.permvar": _permvar,
    "avx512.pmaddw": _pmaddwd,
    "avx512.vpdpbusd": _vpdpbusd,
    "avx512.vpdpwssd": _vpdpwssd,
    "avx512bf16.dpbf16ps": _dpbf16ps,
    "avx512bf16.cvtne2ps2bf16": _cvtne2ps2bf16,
}
