"""Schedules: frozen steps applied to an immutable state.

loops    Split  Reorder  Fuse  Parallel  Vectorize  Unroll  Prefetch        (loop_steps.py)
stages   ComputeAt  ComputeInline  CacheRead  CacheWrite  Pack  Rfactor     (stage_steps.py)
"""

from autosched.schedule.loop_steps import Fuse, Parallel, Prefetch, Reorder, Split, Unroll, Vectorize
from autosched.schedule.record import replay, steps_from_json, steps_to_json
from autosched.schedule.stage import At, Loop, Num, Stage, StageAxis, StageOp
from autosched.schedule.stage_steps import CacheRead, CacheWrite, ComputeAt, ComputeInline, Pack, Rfactor
from autosched.schedule.state import State, Step, initial_state

__all__ = [
    "At", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline", "Fuse", "Loop", "Num", "Pack", "Parallel",
    "Prefetch", "Reorder", "Rfactor", "Split", "Stage", "StageAxis", "StageOp", "State", "Step", "Unroll",
    "Vectorize", "initial_state", "replay", "steps_from_json", "steps_to_json",
]  # fmt: skip
