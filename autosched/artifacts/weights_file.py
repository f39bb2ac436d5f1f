"""A network's weights as kernels read them, in a file of their own, and the C function that maps it.

The file is one in the format of safetensors with a single tensor, `packed`, and what it belongs to as metadata, which
begin with a digest of the tensor: it tells one network's weights from another's. That they are whole a weighted sum of
their words tells, which takes a machine no longer than reading them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from autosched.graph.graph import Array
from autosched.graph.saved import ALIGNMENT, header_of
from autosched.target import Target

SUFFIX = ".safetensors"
# Instruction sets, by LLVM's names, that all C compilers of the last years can ask the processor for.
ASKED = ("avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni")
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
    """`head`: what the file begins with; `block`: the bytes that follow, a multiple of 64."""

    head: bytes
    block: Array
    digest: str

    @property
    def content(self) -> bytes:
        return b"".join((self.head, self.block.data))

    @property
    def digest_at(self) -> int:
        """The byte of the file at which the digest begins."""
        return self.head.index(self.digest.encode())

    @property
    def checksum(self) -> int:
        """The sum of all words of 64 bits, each times an odd number of its own, modulo 2**64: of a file in which one
        word, or two that changed places, differ, it is another."""
        words = self.block.view("<u8")
        return int(np.dot(words, 2 * np.arange(words.size, dtype="uint64") + 1))


def packed_weights(block: Array, network: str, target: Target) -> WeightsFile:
    """The file of a network's block of weights (uint8), for kernels that were made for `target`."""
    padded = np.zeros(-(-block.nbytes // ALIGNMENT) * ALIGNMENT, "uint8")
    padded[: block.nbytes] = block
    digest = hashlib.sha256(padded.data).hexdigest()
    tensor = {"dtype": "U8", "shape": [padded.nbytes], "data_offsets": [0, padded.nbytes]}
    facts = {"digest": digest, "network": network, "target": target.fingerprint}
    return WeightsFile(header_of({"packed": tensor}, facts), padded, digest)


def map_function(symbol: str, weights: WeightsFile, target: Target) -> str:
    """C source (C99 or C++) of `SYMBOL_map`; it uses the macros of the network's header."""
    asked = [f'__builtin_cpu_supports("{name}")' for name in ASKED if target.arch == "x86_64" and target.has(name)]
    return _MAP.format(
        symbol=symbol, capitals=symbol.upper(), digest_at=weights.digest_at, runs_here=" && ".join(asked) or "1"
    )
