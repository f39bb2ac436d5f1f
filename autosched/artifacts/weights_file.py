"""Weights file of an exported network: the packed weights as kernels read them, and the C function that maps the file.

The file is a safetensors file with one tensor, `packed`. Its metadata name network and target and begin with a digest
of the tensor, which identifies the weights. Damage is detected by a weighted sum of the words, which takes no longer
than reading the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from autosched.graph.graph import Array
from autosched.graph.saved import ALIGNMENT, header_of
from autosched.target import Target

SUFFIX = ".safetensors"
# Instruction sets, by LLVM's names, that `__builtin_cpu_supports` of current C compilers can test.
TESTED_FEATURES = ("avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni")
_MAP = """
/* The weights in the file `path`, mapped, for as long as the process lives. NULL where that cannot be, and errno says
   why: ENOEXEC, this processor lacks instructions of the library; EINVAL, the file has not the weights of this library,
   or not all; EBADMSG, they are damaged; else what the system says. */
static inline const void *{symbol}_map(const char *path)
{{
    const size_t head = {capitals}_WEIGHTS_AT, bytes = {capitals}_WEIGHTS_BYTES;
    struct stat facts;
    const char *found;
    uint64_t sum = 0, word;
    size_t i;
    int file, fits;
    if (!({runs_here})) {{
        errno = ENOEXEC;
        return NULL;
    }}
    file = open(path, O_RDONLY);
    if (file < 0)
        return NULL;
    fits = fstat(file, &facts) == 0 && (size_t)facts.st_size == head + bytes;
    found = (const char *)(fits ? mmap(NULL, head + bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED);
    close(file);
    if (found == (const char *)MAP_FAILED) {{
        errno = fits ? errno : EINVAL;
        return NULL;
    }}
    fits = memcmp(found + {digest_at}, {capitals}_WEIGHTS_DIGEST, 64) == 0;
    for (i = 0; fits && i < bytes / 8; i++) {{
        memcpy(&word, found + head + 8 * i, 8);
        sum += word * (2 * (uint64_t)i + 1);
    }}
    if (fits && sum == {capitals}_WEIGHTS_SUM)
        return found + head;
    munmap((void *)(uintptr_t)found, head + bytes);
    errno = fits ? EBADMSG : EINVAL;
    return NULL;
}}"""


@dataclass(frozen=True)
class WeightsFile:
    """The file's header `head`, the weights `block`, a multiple of 64 bytes, and their digest."""

    head: bytes
    block: Array
    digest: str

    @property
    def content(self) -> bytes:
        return b"".join((self.head, self.block.data))

    @property
    def digest_at(self) -> int:
        """The offset of the digest in the file."""
        return self.head.index(self.digest.encode())

    @property
    def checksum(self) -> int:
        """The sum of all 64-bit words, each times an odd number of its own, modulo 2**64.

        It changes if one word changes, or if two words are exchanged.
        """
        words = self.block.view("<u8")
        return int(np.dot(words, 2 * np.arange(words.size, dtype="uint64") + 1))


def packed_weights(block: Array, network: str, target: Target) -> WeightsFile:
    """Return the file of a network's block of weights (uint8), packed for kernels of `target`."""
    padded = np.zeros(-(-block.nbytes // ALIGNMENT) * ALIGNMENT, "uint8")
    padded[: block.nbytes] = block
    digest = hashlib.sha256(padded.data).hexdigest()
    tensor = {"dtype": "U8", "shape": [padded.nbytes], "data_offsets": [0, padded.nbytes]}
    facts = {"digest": digest, "network": network, "target": target.fingerprint}
    return WeightsFile(header_of({"packed": tensor}, facts), padded, digest)


def map_function(symbol: str, weights: WeightsFile, target: Target) -> str:
    """Return the C source (C99 or C++) of `SYMBOL_map`, which uses the macros of the network's header."""
    tests = [
        f'__builtin_cpu_supports("{name}")' for name in TESTED_FEATURES if target.arch == "x86_64" and target.has(name)
    ]
    return _MAP.format(
        symbol=symbol, capitals=symbol.upper(), digest_at=weights.digest_at, runs_here=" && ".join(tests) or "1"
    )
