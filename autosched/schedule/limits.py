"""How many steps a schedule has at most, and how large their numbers are; `lower.limits` bounds what they amount to.

Steps come from databases, and those from strangers. The search's own schedules had at most 36 steps, 2 factors to a
split and no number beyond an extent (products of matrices, convolutions, rows, pools).
"""

from __future__ import annotations

MAX_STEPS = 512
MAX_FACTORS = 8  # of a split
MAX_FACTOR = 1 << 40  # beyond any extent of a tensor in memory
MAX_TILED = 1 << 48  # all factors of an axis together: indices and bytes that are made of them stay in 64 bits
MAX_DISTANCE = 4096  # iterations
