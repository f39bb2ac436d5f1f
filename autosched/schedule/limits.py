"""Limits of a schedule: the number of its steps and the size of their numbers; `lower.limits` bounds their product."""

from __future__ import annotations

MAX_STEPS = 512
MAX_FACTORS = 8  # of a split
MAX_FACTOR = 1 << 40  # beyond any extent of a tensor in memory
MAX_TILED = 1 << 48  # all factors of an axis together: indices and bytes that are made of them stay in 64 bits
MAX_DISTANCE = 4096  # iterations
