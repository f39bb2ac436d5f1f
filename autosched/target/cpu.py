"""Processors by their LLVM names: the instruction sets of each, and the vector registers that a kernel may use.

Sources: the x86-64 psABI micro-architecture levels, LLVM's X86TargetParser and AArch64 processor definitions, the Arm
Architecture Reference Manual (AdvSIMD: 32 registers of 16 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

# Of processors of either architecture.
LINE_BYTES = 64  # of a cache where nobody tells, and of the lines that code asks for ahead of time
PIECE_BYTES = 16  # what shuffles within a vector stay in, however long it is
LONGEST_STEP = 4  # elements between lanes that shuffles pick from whole vectors; farther ones are loaded one by one


@dataclass(frozen=True)
class Level:
    """A step of an instruction set: what it adds to its base, and the vector registers a kernel may use."""

    base: str | None
    adds: str
    vector_bytes: int
    n_registers: int
    has_fma: bool


# Features that LLVM's code generator may pick by itself when compiling scalar and vector arithmetic.
LEVELS: dict[str, Level] = {
    "x86-64": Level(None, "sse2", 16, 16, False),
    "x86-64-v2": Level("x86-64", "sse3 ssse3 sse4.1 sse4.2 popcnt cx16", 16, 16, False),
    "avx": Level("x86-64-v2", "avx", 32, 16, False),
    "avx-fma": Level("avx", "fma", 32, 16, True),
    "x86-64-v3": Level("avx-fma", "avx2 bmi bmi2 lzcnt movbe f16c", 32, 16, True),
    "knights": Level("x86-64-v3", "avx512f avx512cd", 64, 32, True),
    "x86-64-v4": Level("knights", "avx512bw avx512dq avx512vl", 64, 32, True),
    "icelake": Level(
        "x86-64-v4",
        "avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq gfni vaes vpclmulqdq",
        64,
        32,
        True,
    ),
    "sapphirerapids": Level("icelake", "avx512bf16 avx512fp16 avxvnni amx-tile amx-int8 amx-bf16", 64, 32, True),
    "armv8": Level(None, "neon", 16, 32, True),
}

# Processor name -> (architecture, level, features beyond the level that matter to code generation).
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("x86_64", "x86-64", "", "x86-64 core2 k8 opteron athlon64"),
    ("x86_64", "x86-64", "sse3", "k8-sse3 nocona"),
    ("x86_64", "x86-64", "sse3 sse4a popcnt lzcnt", "amdfam10 barcelona"),
    ("x86_64", "x86-64", "sse3 ssse3 sse4.1", "penryn"),
    ("x86_64", "x86-64-v2", "", "x86-64-v2 nehalem corei7 westmere"),
    ("x86_64", "x86-64-v2", "movbe", "silvermont goldmont goldmont-plus tremont"),
    ("x86_64", "avx", "", "sandybridge corei7-avx"),
    ("x86_64", "avx", "f16c", "ivybridge core-avx-i"),
    ("x86_64", "avx", "f16c bmi lzcnt movbe sse4a", "btver2"),
    ("x86_64", "avx", "fma4 xop lzcnt sse4a", "bdver1"),
    ("x86_64", "avx-fma", "fma4 xop lzcnt sse4a bmi f16c tbm", "bdver2 bdver3"),
    ("x86_64", "x86-64-v3", "fma4 xop sse4a tbm", "bdver4"),
    ("x86_64", "x86-64-v3", "", "x86-64-v3 haswell core-avx2 broadwell skylake"),
    ("x86_64", "x86-64-v3", "sse4a", "znver1 znver2 znver3"),
    ("x86_64", "x86-64-v3", "avxvnni gfni vaes vpclmulqdq", "alderlake raptorlake meteorlake gracemont"),
    (
        "x86_64",
        "x86-64-v3",
        "avxvnni avxifma avxneconvert avxvnniint8 gfni vaes vpclmulqdq",
        "arrowlake arrowlake-s lunarlake pantherlake sierraforest grandridge",
    ),
    ("x86_64", "knights", "", "knl knm"),
    ("x86_64", "x86-64-v4", "", "x86-64-v4 skylake-avx512 skx"),
    ("x86_64", "x86-64-v4", "avx512vnni", "cascadelake"),
    ("x86_64", "x86-64-v4", "avx512vnni avx512bf16", "cooperlake"),
    ("x86_64", "x86-64-v4", "avx512ifma avx512vbmi", "cannonlake"),
    ("x86_64", "icelake", "", "icelake-client icelake-server rocketlake"),
    ("x86_64", "icelake", "avx512vp2intersect", "tigerlake"),
    ("x86_64", "icelake", "avx512bf16 sse4a", "znver4"),
    ("x86_64", "icelake", "avx512bf16 sse4a avxvnni avx512vp2intersect", "znver5"),
    ("x86_64", "sapphirerapids", "", "sapphirerapids emeraldrapids graniterapids graniterapids-d"),
    ("aarch64", "armv8", "", "cortex-a53 cortex-a57 cortex-a72 cortex-a73"),
    ("aarch64", "armv8", "dotprod", "cortex-a55 cortex-a76 cortex-a77 cortex-a78 cortex-x1 neoverse-n1 ampere1"),
    ("aarch64", "armv8", "dotprod sve", "neoverse-v1 neoverse-512tvb"),
    ("aarch64", "armv8", "sve", "a64fx"),
    ("aarch64", "armv8", "dotprod sve sve2", "neoverse-n2 neoverse-v2 neoverse-n3 neoverse-v3 cortex-x2 cortex-a710"),
    ("aarch64", "armv8", "dotprod", "apple-m1 apple-m2 apple-m3 apple-m4"),
)
PROCESSORS: dict[str, tuple[str, str, str]] = {
    name: (arch, level, extra) for arch, level, extra, names in _ROWS for name in names.split()
}


def required_features(mcpu: str) -> frozenset[str]:
    """Instruction sets that LLVM may use for a processor, by LLVM's names for them."""
    _, name, extra = PROCESSORS[mcpu]
    features = set(extra.split())
    step: str | None = name
    while step is not None:
        features |= set(LEVELS[step].adds.split())
        step = LEVELS[step].base
    return frozenset(features)
