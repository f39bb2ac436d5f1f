"""The machine code of a kernel, as cuobjdump prints it, and the loop in it that multiplies matrices."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autosched.errors import UsageError

MULTIPLIES = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA")  # of tensor cores
SECONDS = 60
_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)(?: [^/;]*?0x([0-9a-f]+))?[^;]*;")


@dataclass(frozen=True)
class MachineInstruction:
    """`target`: where a branch goes, None of others."""

    address: int
    opcode: str
    target: int | None = None

    @property
    def multiplies(self) -> bool:
        return self.opcode.split(".")[0] in MULTIPLIES


@dataclass(frozen=True)
class HotLoop:
    """Of a kernel, instructions and those among them that multiply matrices. `is_loop`: false where all of it is
    written out, and the whole kernel is counted."""

    kernel: str
    opcode: str  # of the products, empty where there are none
    instructions: int
    products: int
    is_loop: bool

    @property
    def share(self) -> float:
        return self.products / self.instructions


def find_cuobjdump() -> str | None:
    """cuobjdump from the PATH, from beside nvcc, or as Triton brings it along."""
    nvcc, triton = shutil.which("nvcc"), find_spec("triton")
    places: list[str | None] = [None]
    places += [str(Path(nvcc).resolve().parent)] if nvcc else []
    places += ["/usr/local/cuda/bin"]
    for folder in (triton.submodule_search_locations or ()) if triton else ():
        places.append(str(Path(folder) / "backends" / "nvidia" / "bin"))
    return next((found for place in places if (found := shutil.which("cuobjdump", path=place))), None)


def disassembled(code: bytes, cuobjdump: str) -> dict[str, tuple[MachineInstruction, ...]]:
    """The instructions of each kernel of a cubin. Raises UsageError where cuobjdump does not take it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        command = [cuobjdump, "-sass", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        raise UsageError(f"{cuobjdump} left with {done.returncode}: {done.stderr.strip()[:300]}; try that of nvcc")
    return parsed(done.stdout)


def parsed(text: str) -> dict[str, tuple[MachineInstruction, ...]]:
    """What cuobjdump prints, by kernels."""
    found: dict[str, list[MachineInstruction]] = {}
    instructions: list[MachineInstruction] = []
    for line in text.splitlines():
        if function := _FUNCTION.search(line):
            instructions = found.setdefault(function[1], [])
        elif match := _INSTRUCTION.match(line):
            target = int(match[3], 16) if match[2].startswith("BRA") and match[3] else None
            instructions.append(MachineInstruction(int(match[1], 16), match[2], target))
    return {kernel: tuple(them) for kernel, them in found.items()}


def hot_loop(kernels: dict[str, tuple[MachineInstruction, ...]]) -> HotLoop | None:
    """Of all kernels the loop with the most products, of loops in each other the innermost that has any: what fills
    memory beside it, in other warps, is a loop of its own. None without instructions."""
    found = [loop for name, them in kernels.items() for loop in _loops(name, them)]
    return max(found, key=lambda loop: (loop.products, loop.is_loop), default=None)


def _loops(kernel: str, code: Sequence[MachineInstruction]) -> list[HotLoop]:
    ranges = [(x.target, x.address) for x in code if x.target is not None and x.target < x.address]
    bodies = {(a, b): [x for x in code if a <= x.address <= b] for a, b in ranges}
    busy = [r for r, body in bodies.items() if any(x.multiplies for x in body)]
    inner = [r for r in busy if not any(r != other and r[0] <= other[0] and other[1] <= r[1] for other in busy)]
    if inner:
        return [_loop(kernel, bodies[r], True) for r in inner]
    end = next((n + 1 for n, x in enumerate(code) if x.target == x.address), len(code))  # padding comes behind it
    return [_loop(kernel, code[:end], False)] if code else []


def _loop(kernel: str, body: Sequence[MachineInstruction], is_loop: bool) -> HotLoop:
    products = [x for x in body if x.multiplies]
    opcode = products[0].opcode.partition(".F32")[0] if products else ""
    return HotLoop(kernel, opcode, len(body), len(products), is_loop)
