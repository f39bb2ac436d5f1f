"""Random numbers that are drawn while a model is imported, by the counter-based generator Philox4x32-10.

A number is a function of a seed, of the number of the draw and of its place in the draw, so it is the same on each
machine (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import math

import numpy as np

from autosched.graph.graph import Array

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # what is added to the key after each round
_MASK = 0xFFFFFFFF


def philox(counter: Array, key: tuple[int, int]) -> Array:
    """Return four words of 32 bits, [4, n], for each of n counters of four words, [4, n]."""
    low = np.uint64(_MASK)
    c0, c1, c2, c3 = counter.astype(np.uint64)
    for n in range(_ROUNDS):
        k0, k1 = (np.uint64((word + n * weyl) & _MASK) for word, weyl in zip(key, _WEYL, strict=True))
        p, q = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (q >> np.uint64(32)) ^ c1 ^ k0, q & low, (p >> np.uint64(32)) ^ c3 ^ k1, p & low
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def words(seed: float, draw: int, n: int) -> Array:
    """Return n words of 32 bits. The key is the seed's bits as a float64."""
    blocks = np.arange(-(-n // 4), dtype=np.uint64)
    counter = np.stack([blocks & np.uint64(_MASK), blocks >> np.uint64(32), np.full_like(blocks, draw), blocks * 0])
    bits = int(np.float64(seed).view(np.uint64))
    made: Array = philox(counter, (bits & _MASK, bits >> 32)).T.reshape(-1)[:n]
    return made


def uniform(seed: float, draw: int, shape: tuple[int, ...]) -> Array:
    """Return multiples of 2**-53 from 0 on that are less than 1."""
    high, low = words(seed, draw, 2 * math.prod(shape)).reshape(-1, 2).T.astype(np.uint64)
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    made: Array = bits.astype(np.float64).reshape(shape) * 2.0**-53
    return made


def normal(seed: float, draw: int, shape: tuple[int, ...]) -> Array:
    """Return numbers with mean 0 and deviation 1 (Box and Muller, "A note on the generation of random normal deviates",
    The Annals of Mathematical Statistics, 1958)."""
    size, angle = words(seed, draw, 2 * math.prod(shape)).reshape(-1, 2).T.astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((size + 0.5) * 2.0**-32))
    made: Array = (radius * np.cos(angle * (2.0 * math.pi * 2.0**-32))).reshape(shape)
    return made
