"""Why a network takes as long as it does: the time of each kernel against what the machine could do.

The least time of a kernel is the larger of its operations at the measured peak and of the bytes that it must read and
write at the measured bandwidth, which is that of as many bytes read again and again: of a cache, where they fit in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.executor.kernel_origin import origin_of
from autosched.executor.model import Model
from autosched.executor.profile import profile
from autosched.kernel.measured_roofline import Roofs
from autosched.kernel.roofline import compulsory_bytes
from autosched.planning.execution_plan import SplitGroup
from autosched.planning.extract_tasks import NetworkTask
from autosched.planning.fusion_choice import FusionChoice
from autosched.verification.sample_inputs import input_sets


@dataclass(frozen=True)
class Layer:
    """Kernels of a network that are one task. Seconds, operations and bytes are those of all `count` together.

    `origins`: what the last node of each is called where the network came from.
    """

    operators: str
    origins: tuple[str, ...]
    steps: tuple[int, ...]
    seconds: float
    flops: int
    n_bytes: int
    least_s: float

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def of_least(self) -> float:
        """The least time as a fraction of the time."""
        return self.least_s / max(self.seconds, 1e-12)


@dataclass(frozen=True)
class Explanation:
    """`layers`: those that take longest first; `call_s`: the whole network, called as users do. `split`: operators that
    should be one kernel, but are several; `fusion_choices`: chains that may be fused."""

    layers: tuple[Layer, ...]
    call_s: float
    split: tuple[SplitGroup, ...] = ()
    fusion_choices: tuple[FusionChoice, ...] = ()

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
    """Runs the network on normal inputs for about two seconds, and measures the machine in about one."""
    (normal, _) = input_sets(model.original)
    times = profile(model, normal.arrays)
    roofs = Roofs(model.device)
    layers = [_layer(model, task, times.kernels, roofs) for task in model.tasks]
    ordered = tuple(sorted(layers, key=lambda layer: -layer.seconds))
    return Explanation(ordered, times.call, model.program.split, model.program.fusion_choices)


def _layer(model: Model, task: NetworkTask, seconds: Mapping[int, float], roofs: Roofs) -> Layer:
    problem, count = task.request.problem, task.count
    needed = compulsory_bytes(problem.dag)
    named = tuple(origin for step in task.steps if (origin := origin_of(model, step)))
    return Layer(
        task.name,
        named,
        task.steps,
        sum(seconds[step] for step in task.steps),
        count * problem.dag.flops,
        count * needed,
        count * roofs.roof(needed, problem.dtype).seconds(problem.dag.flops, needed),
    )
