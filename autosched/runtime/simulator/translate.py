"""Translation of CUDA C to C++ for a processor: shared arrays are offsets in an arena, inline PTX is calls, kernels get
entries.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from autosched.runtime.simulator.assembly import translate_assembly
from autosched.runtime.simulator.flaws import Flaw, flaws_of_text

SIZES = {
    "float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8, "long long": 8, "unsigned long long": 8,
    "unsigned short": 2, "short": 2, "signed char": 1, "unsigned char": 1, "char": 1, "bool": 1,
    "float2": 8, "float4": 16, "uint2": 8, "uint4": 16,
}  # fmt: skip
_ALIGNED = r"(?:__align__\((\d+)\)\s*)?"
_DYNAMIC = re.compile(rf"extern __shared__ {_ALIGNED}unsigned char (\w+)\[\];")
_STATIC = re.compile(rf"__shared__ {_ALIGNED}([\w ]+?) (\w+)((?:\[\d+\])+);")
_KERNEL = re.compile(r'extern "C" __global__ void ((?:__\w+__\([^)]*\) )*)(\w+)\(([^)]*)\)')
_SMALL = {1: re.compile(r"\b(?:char|bool)\b ?(?:\*|\(\*|\w+\[\d)"), 2: re.compile(r"\bshort\b ?(?:\*|\(\*|\w+\[\d)")}
HEAD_LINES = ('#include "cuda.h"', "#line 1")
HEAD = len(HEAD_LINES)
_CLUSTER = re.compile(r"__cluster_dims__\((\d+)")
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)")
_SHARED = re.compile(r"__shared__ (?:__align__\((\d+)\)\s*)?([\w ]+?) \w+\[")


@dataclass(frozen=True)
class Translated:
    """`text` for g++. By kernel: `clusters`, the blocks of a cluster along x; `parameters`, their declarations;
    `most_threads`, those that its launch bounds allow, 0 without; `alignments`, of its shared memory, in bytes, and
    `gaps`, bytes between its arrays that a launch does not ask for.
    `granule`: bytes of the smallest elements. `flaws`: see `flaws.py`.
    """

    text: str
    clusters: dict[str, int]
    parameters: dict[str, tuple[str, ...]]
    most_threads: dict[str, int]
    alignments: dict[str, int]
    gaps: dict[str, int]
    granule: int
    flaws: tuple[Flaw, ...]

    def written(self, kernel: str) -> tuple[bool, ...]:
        """Return for each argument whether it may be written."""
        return tuple("const " not in p for p in self.parameters[kernel])

    def line(self, number: int) -> str:
        """Return a line of the original text, from 1 on, as it is after translation."""
        lines = self.text.splitlines()[HEAD:]
        return lines[number - 1].strip() if number <= len(lines) else ""


def translate(text: str) -> Translated:
    """Translate a text; the number of lines stays the same. Raises UsageError for PTX that the runtime lacks."""
    kernels = _KERNEL.findall(text)
    body = translate_assembly(text)
    body = _DYNAMIC.sub(r"unsigned char* const \2 = simulator::simulator_shared(0);", body)
    pieces = re.split(r'(?=extern "C" __global__)', body)  # each kernel has an arena of its own
    placed = [_placed(piece) for piece in pieces]
    body = "".join(piece for piece, _ in placed)
    entries = [_entry(name, _listed(parameters)) for _, name, parameters in kernels]
    declared = {name: tuple(_listed(parameters)) for _, name, parameters in kernels}
    bounds = {name: int(found[1]) if (found := _BOUNDS.search(words)) else 0 for words, name, _ in kernels}
    parts = re.split(r'(?=extern "C" __global__)', text)[1:]
    alignments = {name: _alignment(part) for (_, name, _), part in zip(kernels, parts, strict=True)}
    gaps = {name: added for (_, name, _), (_, added) in zip(kernels, placed[1:], strict=True)}
    clusters = {name: int(cluster[1]) if (cluster := _CLUSTER.search(words)) else 1 for words, name, _ in kernels}
    lines = [*HEAD_LINES, body, *entries]
    return Translated(
        "\n".join(lines) + "\n", clusters, declared, bounds, alignments, gaps, granule(text), flaws_of_text(text)
    )


def _alignment(kernel: str) -> int:
    """Return that of a kernel's shared memory: no array has more than it is declared with."""
    return max((int(given or SIZES[kind]) for given, kind in _SHARED.findall(kernel)), default=1)


def granule(text: str) -> int:
    """Return the bytes, 4 at most, of the smallest element type of pointers and arrays in a text."""
    return next((nbytes for nbytes, pattern in _SMALL.items() if pattern.search(text)), 4)


def _placed(text: str) -> tuple[str, int]:
    """Allocate arrays one after the other in the arena, each at a multiple of its alignment; an array with less than
    others at no multiple of theirs. Return the text, and the bytes that this adds."""
    end = added = 0
    most = _alignment(text)

    def place(match: re.Match[str]) -> str:
        nonlocal end, added
        alignment, kind, name, extents = match.groups()
        size = SIZES[kind]
        unit = int(alignment or size)
        start = -(-end // unit) * unit
        if start % most == 0 and unit < most:
            start, added = start + unit, added + most
        end = start + size * math.prod(int(n) for n in re.findall(r"\d+", extents))
        return f"{kind} (&{name}){extents} = *({kind} (*){extents})simulator::simulator_shared({start});"

    return _STATIC.sub(place, text), added


def _listed(parameters: str) -> list[str]:
    return [p.strip() for p in parameters.split(",") if p.strip()]


def _entry(name: str, parameters: list[str]) -> str:
    """Return a function that calls the kernel with arguments by their addresses in an array."""
    arguments = [_argument(n, p) for n, p in enumerate(parameters)]
    return f'extern "C" SIMULATOR_ENTRY void enter_{name}(void** given) {{ {name}({", ".join(arguments)}); }}'


def _argument(n: int, parameter: str) -> str:
    """Return an argument: pointers are the array's items, other values are read from there."""
    kind = parameter.rpartition(" ")[0].replace("__restrict__", "").replace("__grid_constant__", "")
    return f"({kind})given[{n}]" if "*" in kind else f"*({kind}*)given[{n}]"
