"""Roofline analysis of a network: the time of each kernel against the least time by the measured roofline.

The least time is the larger of the operations at the measured peak and of the compulsory bytes at the measured
bandwidth. The bandwidth is that of the cache level which holds as many bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.executor.kernel_origin import kernel_origin
from autosched.executor.model import FallbackTime, Model
from autosched.executor.profile import profile
from autosched.graph.fusion.choice import FusionChoice
from autosched.kernel.measured_roofline import MeasuredRooflines
from autosched.kernel.roofline import compulsory_bytes
from autosched.kernel.spec import KernelSpec
from autosched.planning.execution_plan import SplitGroup
from autosched.planning.extract_tasks import NetworkTask
from autosched.verification.sample_inputs import input_sets


@dataclass(frozen=True)
class Layer:
    """The kernels of one task. Seconds, operations and bytes are sums over all `count` runs in a call of the network.

    `repeats`: the iterations of the loops that the kernels are in. `origins`: names of the last node of each kernel in
    the framework of the network.
    """

    operators: str
    origins: tuple[str, ...]
    steps: tuple[int, ...]
    seconds: float
    flops: int
    n_bytes: int
    least_s: float
    repeats: int = 1

    @property
    def count(self) -> int:
        return len(self.steps) * self.repeats

    @property
    def roofline_fraction(self) -> float:
        """The least time as a fraction of the time."""
        return self.least_s / max(self.seconds, 1e-12)


@dataclass(frozen=True)
class Explanation:
    """`layers`: in descending order of time. `call_s`: a call of the whole network. `split`: operators that should be
    one kernel, but could not be built as one. `fusion_choices`: the fusion candidates. `fallbacks`: what another engine
    runs."""

    layers: tuple[Layer, ...]
    call_s: float
    split: tuple[SplitGroup, ...] = ()
    fusion_choices: tuple[FusionChoice[KernelSpec], ...] = ()
    fallbacks: tuple[FallbackTime, ...] = ()

    @property
    def kernels_s(self) -> float:
        return sum(layer.seconds for layer in self.layers)

    @property
    def least_s(self) -> float:
        return sum(layer.least_s for layer in self.layers)

    @property
    def flops(self) -> int:
        return sum(layer.flops for layer in self.layers)

    def share(self, layer: Layer) -> float:
        return layer.seconds / max(self.kernels_s, 1e-12)


def explain_model(model: Model) -> Explanation:
    """Profile the network on normal inputs for about two seconds, and measure the roofline in about one."""
    rooflines, layers, call_s = MeasuredRooflines(model.device), list[Layer](), 0.0
    split, choices = list[SplitGroup](), list[FusionChoice[KernelSpec]]()
    for part in model.compiled_parts:
        (normal, _) = input_sets(part.original)
        times = profile(part, normal.arrays)
        layers += [_layer(part, task, times.kernels, rooflines) for task in part.tasks]
        call_s += times.call
        split += (group for program in part.program.programs for group in program.split)
        choices += part.program.all_fusion_choices
    fallbacks = model.fallback_times()
    call_s += sum(fallback.seconds for fallback in fallbacks)
    ordered = tuple(sorted(layers, key=lambda layer: -layer.seconds))
    return Explanation(ordered, call_s, tuple(split), tuple(choices), fallbacks)


def _layer(model: Model, task: NetworkTask, seconds: Mapping[int, float], rooflines: MeasuredRooflines) -> Layer:
    problem, count = task.request.problem, task.count
    n_bytes = compulsory_bytes(problem.dag)
    origins = tuple(origin for step in task.steps if (origin := kernel_origin(model.program.group(step))))
    return Layer(
        task.name,
        origins,
        task.steps,
        task.repeats * sum(seconds[step] for step in task.steps),
        count * problem.dag.flops,
        count * n_bytes,
        count * rooflines.roof(n_bytes, problem.dtype).seconds(problem.dag.flops, n_bytes),
        task.repeats,
    )
