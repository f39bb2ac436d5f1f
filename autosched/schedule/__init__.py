"""Schedules: frozen steps applied to an immutable state.

loops    Split  Reorder  Fuse  Parallel  Vectorize  Unroll  Prefetch  FetchAhead  Stream (loop_steps.py)
stages   ComputeAt  ComputeInline  CacheRead  Reindex  CacheWrite  Pack  Rfactor  (stage_steps.py)
GPU      Bind  Team  Cooperate  Pad  Pipeline  CrossThread  LaunchBounds    (gpu_steps.py)
         Atomic                                                             (atomic.py)
places   NarrowPlaces                                                       (places.py)
axes     Flatten                                                            (flatten.py)
windows  Separate                                                           (separate.py)
operands Widen  Factor  Once                                                (widen.py)
words    Tensorize                                                          (tensorize.py)
whole    Winograd                                                           (winograd.py)
"""

from autosched.schedule.atomic import Atomic
from autosched.schedule.flatten import Flatten, can_flatten
from autosched.schedule.gpu_steps import Bind, Cooperate, CrossThread, LaunchBounds, Pad, Pipeline, Team
from autosched.schedule.loop_steps import (
    FetchAhead,
    Fuse,
    Parallel,
    Prefetch,
    Reorder,
    Split,
    Stream,
    Unroll,
    Vectorize,
)
from autosched.schedule.places import NarrowPlaces
from autosched.schedule.record import check_target, largest_tile, replay, steps_from_json, steps_text, steps_to_json
from autosched.schedule.separate import Separate, window_axes
from autosched.schedule.stage import At, Loop, Num, Stage, StageAxis, StageOp
from autosched.schedule.stage_steps import CacheRead, CacheWrite, ComputeAt, ComputeInline, Pack, Reindex, Rfactor
from autosched.schedule.state import State, Step, initial_state
from autosched.schedule.tensorize import Tensorize
from autosched.schedule.widen import Factor, Once, Widen, factors, repeated_parts, widened
from autosched.schedule.winograd import Winograd

__all__ = [
    "At", "Atomic", "Bind", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline", "Cooperate", "CrossThread",
    "Factor", "FetchAhead", "Flatten", "Fuse", "LaunchBounds", "Loop", "NarrowPlaces", "Num", "Once", "Pack", "Pad",
    "Parallel", "Pipeline", "Prefetch", "Reindex", "Reorder", "Rfactor", "Separate", "Split", "Stage", "StageAxis",
    "StageOp", "State", "Step", "Stream", "Team", "Tensorize", "Unroll", "Vectorize", "Widen", "Winograd",
    "can_flatten", "check_target", "factors", "initial_state", "largest_tile", "repeated_parts", "replay",
    "steps_from_json", "steps_text", "steps_to_json", "widened", "window_axes",
]  # fmt: skip
