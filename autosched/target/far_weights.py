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
MOST_BYTES = 256 << 20  # of weights that are read in turn


def weights_place(n_bytes: int, target: Target) -> str:
    """Where weights lie of a network that has so many bytes of them: one of FAR, or NEAR."""
    if target.backend.is_gpu or n_bytes <= target.l2_bytes:
        return NEAR
    return LAST_CACHE if n_bytes <= target.l3_bytes else MEMORY


def passing_bytes(place: str, target: Target, threads: int) -> int:
    """Bytes of other weights that are to be read before a kernel of so many threads finds its own in `place`."""
    own = PASSES_OF_CACHE * threads * target.l2_bytes
    if place == NEAR:
        return 0
    return own if place == LAST_CACHE else min(max(own, 2 * target.l3_bytes), max(own, MOST_BYTES))
