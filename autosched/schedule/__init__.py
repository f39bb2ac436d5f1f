"""Schedules: frozen steps applied to an immutable state.

loops    Split  Reorder  Fuse  Parallel  Vectorize  Unroll  Prefetch  FetchAhead  Stream (steps/loops.py)
stages   ComputeAt  ComputeInline  CacheRead  Reindex  CacheWrite  Pack  Rfactor  (steps/stages.py)
GPU      Bind  Team  Cooperate  Pad  Pipeline  CrossThread  AcrossLanes  LaunchBounds  Raster  (steps/gpu.py)
         Atomic                                                             (steps/atomic.py)
         Mma                                                                (steps/matrices.py)
         Average  Spread  Online                                            (steps/online.py)
         WarpgroupMma  StoreTiles  ShareTiles                              (steps/warpgroups.py)
parts    Partition                                                          (steps/partition.py)
places   NarrowPlaces                                                       (steps/places.py)
axes     Flatten                                                            (steps/flatten.py)
windows  Separate                                                           (steps/separate.py)
         RunningSum                                                         (steps/running_sum.py)
         Matricize                                                          (steps/matricize.py)
         Lengthen                                                           (steps/lengthen.py)
         WriteOut                                                           (steps/write_out.py)
         Slide                                                              (steps/slide.py)
shares   DivideLast  WithinReach                                            (steps/shares.py)
operands Widen  Factor  Once                                                (steps/widen.py)
words    Tensorize                                                          (steps/tensorize.py)
whole    Winograd                                                           (steps/winograd.py)
"""

from autosched.schedule.record import check_target, largest_tile, replay, steps_from_json, steps_text, steps_to_json
from autosched.schedule.stage import At, Loop, Num, Stage, StageAxis, StageOp
from autosched.schedule.state import State, Step, initial_state
from autosched.schedule.steps.atomic import Atomic
from autosched.schedule.steps.flatten import Flatten, can_flatten
from autosched.schedule.steps.gpu import (
    AcrossLanes,
    Bind,
    Cooperate,
    CrossThread,
    LaunchBounds,
    Pad,
    Pipeline,
    Raster,
    Team,
)
from autosched.schedule.steps.lengthen import Lengthen
from autosched.schedule.steps.loops import (
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
from autosched.schedule.steps.matrices import Mma
from autosched.schedule.steps.matricize import Matricize, windows
from autosched.schedule.steps.online import Average, Online, Spread
from autosched.schedule.steps.partition import Partition
from autosched.schedule.steps.places import NarrowPlaces
from autosched.schedule.steps.running_sum import RunningSum, running_window
from autosched.schedule.steps.separate import Separate, window_axes
from autosched.schedule.steps.shares import DivideLast, WithinReach
from autosched.schedule.steps.slide import Slide
from autosched.schedule.steps.stages import CacheRead, CacheWrite, ComputeAt, ComputeInline, Pack, Reindex, Rfactor
from autosched.schedule.steps.tensorize import Tensorize
from autosched.schedule.steps.warpgroups import ShareTiles, StoreTiles, WarpgroupMma, can_store_tiles
from autosched.schedule.steps.widen import Factor, Once, Widen, factors, repeated_parts, widened
from autosched.schedule.steps.winograd import Winograd
from autosched.schedule.steps.write_out import WriteOut, can_write_out

__all__ = [
    "AcrossLanes",
    "At",
    "Atomic",
    "Average",
    "Bind",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "ComputeInline",
    "Cooperate",
    "CrossThread",
    "DivideLast",
    "Factor",
    "FetchAhead",
    "Flatten",
    "Fuse",
    "LaunchBounds",
    "Lengthen",
    "Loop",
    "Matricize",
    "Mma",
    "NarrowPlaces",
    "Num",
    "Once",
    "Online",
    "Pack",
    "Pad",
    "Parallel",
    "Partition",
    "Pipeline",
    "Prefetch",
    "Raster",
    "Reindex",
    "Reorder",
    "Rfactor",
    "RunningSum",
    "Separate",
    "ShareTiles",
    "Slide",
    "Split",
    "Spread",
    "Stage",
    "StageAxis",
    "StageOp",
    "State",
    "Step",
    "StoreTiles",
    "Stream",
    "Team",
    "Tensorize",
    "Unroll",
    "Vectorize",
    "WarpgroupMma",
    "Widen",
    "Winograd",
    "WithinReach",
    "WriteOut",
    "can_flatten",
    "can_store_tiles",
    "can_write_out",
    "check_target",
    "factors",
    "initial_state",
    "largest_tile",
    "repeated_parts",
    "replay",
    "running_window",
    "steps_from_json",
    "steps_text",
    "steps_to_json",
    "widened",
    "window_axes",
    "windows",
]  # fmt: skip
