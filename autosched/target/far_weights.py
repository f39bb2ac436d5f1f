"""Where the weights of a kernel lie when it is called: near, or as far as those of a whole network push them.

A kernel that is called again and again has its weights in the caches of the core. In a network all other weights are
read between two of its calls: what together does not fit into a core's own caches comes from the last one each time,
and what does not fit there from memory. Whoever draws up, judges or times a kernel of a network asks here.
"""

from __future__ import annotations

from autosched.target.target import Target

NEAR, LAST_CACHE, MEMORY = "", "last cache", "memory"
FAR = (LAST_CACHE, MEMORY)
PASSES_OF_CACHE = 4  # as many bytes as this many times what a cache holds leave nothing in it of what was there
# Of a last cache that dozens of cores share a process has a part. On such a Xeon with 480 MB, beside other guests, one
# core read 4 to 64 MB again and again at 34 to 27 GB/s, 128 MB at 7.7, 256 MB at 6.
SHARED_BYTES, SHARE = 64 << 20, 8


def weights_place(n_bytes: int, target: Target) -> str:
    """Where weights lie of a network that has so many bytes of them: one of FAR, or NEAR."""
    if target.backend.is_gpu or n_bytes <= target.l2_bytes:
        return NEAR
    return LAST_CACHE if n_bytes <= _last_cache(target) else MEMORY


def _last_cache(target: Target) -> int:
    """Bytes of the last cache that a process can count on."""
    return min(target.l3_bytes, max(SHARED_BYTES, target.l3_bytes // SHARE))


def passing_bytes(place: str, target: Target, threads: int) -> int:
    """Bytes of other weights that are to be read before a kernel of so many threads finds its own in `place`."""
    own = PASSES_OF_CACHE * threads * target.l2_bytes
    if place == NEAR:
        return 0
    return own if place == LAST_CACHE else max(own, 2 * _last_cache(target))
