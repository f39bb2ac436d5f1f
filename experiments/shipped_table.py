"""Schedules of common networks' kernels for the table that the package ships.

    python -m experiments.shipped_table [NETWORK ...] [--target "llvm -mcpu=znver3"] [--files FOLDER] [--out FOLDER]

Networks are those of `experiments.networks` and some of torchvision, as torch modules and as the ONNX files that
torch.onnx.export makes of them; SHIPPED are those of the tables in the package. Batch norms of a module that was never
trained fold to no bias, so torchvision's networks that have some are read with statistics of training and without
(NAME-untrained). Any ONNX file may be named instead.

For each structure the analytic model chooses schedules for the largest sizes, and for others that are farther than
NEAR from those that have one. Nothing is measured. With `--add` the tables keep their decisions, so that further
networks change none of the schedules that others take. Decisions are for the caches of this machine, or usual ones for
another architecture. They are kept in the disk cache and ONNX files in `--files`, so that a run goes on where another
one was interrupted. `autosched.kernel.shipped.table` reads the tables, and has what classes are.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosched.errors import AutoschedError
from autosched.executor.load import load_network
from autosched.graph.fusion.candidates import find_fusion_candidates
from autosched.graph.fusion.choice import PredictedGroup
from autosched.graph.fusion.node_properties import weights_bytes
from autosched.graph.graph import Graph
from autosched.graph.index_checks import checks_of
from autosched.graph.steps import Group
from autosched.kernel.device import Device, find_device
from autosched.kernel.pool import choose_schedules
from autosched.kernel.shipped import table as shipped
from autosched.kernel.shipped.table import Table, path_of, read_table
from autosched.kernel.spec import KernelSpec
from autosched.kernel.structure_cache import RATE, SCHEDULE
from autosched.kernel.transfer import NearestSchedules
from autosched.planning.device_passes import prepare_graph
from autosched.planning.execution_plan import steps_of
from autosched.planning.extract_tasks import GroupKernels
from autosched.planning.predicted_latency import LatencyPredictor
from autosched.target.far_weights import weights_place
from autosched.tuner.workload_spec import distance
from experiments.networks.models import NETWORKS, Network, randomise

TARGETS = ("llvm -mcpu=znver3", "llvm -mcpu=emeraldrapids", "llvm -mcpu=neoverse-v1")
NEAR = 3.0  # `distance` up to which sizes take the decisions of others
DECODERS, SHALLOW = "llama", {"layers": 2}  # their layers are equal, and slow to export
WITH_NORMS = (  # of torchvision, with batch norms
    "densenet121", "efficientnet_b0", "mobilenet_v2", "mobilenet_v3_large", "resnet18", "resnet50", "resnext50_32x4d",
)  # fmt: skip
WITHOUT_NORMS = ("convnext_tiny", "swin_t", "vgg16", "vit_b_16")
SIZE = 224  # of the images of torchvision's networks
UNTRAINED = "-untrained"
SHIPPED = (  # the networks of the tables in the package
    "resnet50", "mobilenet_v2", "bert_base", "densenet121", "efficientnet_b0", "mobilenet_v3_large", "resnext50_32x4d",
    "swin_t", "convnext_tiny", "resnet18", "vit_b_16", "vgg16", "unet", "llama_prefill", "llama_step",
    *(f"{name}{UNTRAINED}" for name in WITH_NORMS),
)  # fmt: skip


@dataclass(frozen=True)
class CandidateRecorder(LatencyPredictor):
    """Finds which groups the choice of fusion asks for, and predicts nothing. `candidates`: their kernels; `unfusible`:
    fused kernels that have no sketch."""

    candidates: list[KernelSpec] = field(default_factory=list)
    unfusible: list[KernelSpec] = field(default_factory=list)

    def predict(self, groups: Sequence[Group]) -> list[PredictedGroup[KernelSpec]]:
        specs = [self.kernels_of.spec(group) for group in groups]
        self.candidates.extend(specs)
        return [PredictedGroup(group, spec, math.inf) for group, spec in zip(groups, specs, strict=True)]

    def can_fuse(self, fused: Group, unfused: Sequence[Group]) -> bool:
        has_sketch = super().can_fuse(fused, unfused)
        if not has_sketch:
            self.unfusible.append(self.kernels_of.spec(fused))
        return has_sketch


@dataclass
class ProcessorClass:
    """A target that stands for a class, and the kernels of the networks that were read for it."""

    target: str
    device: Device
    specs: dict[KernelSpec, None] = field(default_factory=dict)
    unfusible: dict[KernelSpec, None] = field(default_factory=dict)

    def read(self, graph: Graph) -> None:
        """Add the kernels of a network, and those that fusion chooses between."""
        prepared = prepare_graph(graph, self.device)
        checked = [check.ids for check in checks_of(prepared) if check.ids in prepared.producers]
        stored = replace(prepared, outputs=tuple(dict.fromkeys((*prepared.outputs, *checked))))
        steps = steps_of(prepared, self.device, stored=stored)
        residency = weights_place(weights_bytes(prepared, steps), self.device.target)
        recorder = CandidateRecorder(GroupKernels(prepared, self.target, self.device, residency), NearestSchedules())
        find_fusion_candidates(stored, steps, recorder)
        self.specs |= {recorder.kernels_of.spec(step): None for step in steps if isinstance(step, Group)}
        self.specs |= dict.fromkeys(recorder.candidates)
        self.unfusible |= dict.fromkeys(recorder.unfusible)

    def decide(self, known: Table) -> Table:
        """Return the table of this class: the `known` decisions, and those for sizes that are far from all of these."""
        table = {structure: {what: [*rows] for what, rows in each.items()} for structure, each in known.items()}

        def add(what: str, spec: KernelSpec, decision: str | float) -> None:
            sized = spec.workload.sized
            table.setdefault(sized.structure, {}).setdefault(what, []).append(([*sized.sizes], decision))

        for spec, schedule in choose_schedules(anchors(self.specs, known, SCHEDULE)).items():
            add(SCHEDULE, spec, schedule.steps)
        for spec in anchors(self.unfusible, known, RATE):
            add(RATE, spec, math.inf)
        return table


def anchors(kernel_specs: Mapping[KernelSpec, object], known: Table, what: str) -> list[KernelSpec]:
    """Return the kernels that get decisions, beside the known ones, the largest of each structure first."""
    chosen: list[KernelSpec] = []
    decided = {structure: [tuple(sizes) for sizes, _ in each.get(what, ())] for structure, each in known.items()}
    for spec in sorted(kernel_specs, key=lambda spec: (-math.prod(spec.workload.sized.sizes), spec.workload.text)):
        sized = spec.workload.sized
        others = decided.setdefault(sized.structure, [])
        if all(distance(sized.sizes, other) > NEAR for other in others):
            others.append(sized.sizes)
            chosen.append(spec)
    return chosen


def write_table(path: Path, table: Table) -> None:
    """Write a table, in an order that does not depend on that of its networks."""
    ordered = {
        structure: {what: sorted(rows) for what, rows in sorted(decisions.items())}
        for structure, decisions in sorted(table.items())
    }
    text = json.dumps(ordered, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


Maker = Callable[[], tuple[nn.Module, Sequence[Any]]]  # of a module in inference, and of inputs for it


def makers() -> dict[str, Maker]:
    """Return functions that make the networks, by name."""
    found: dict[str, Maker] = {}
    for name, network in NETWORKS.items():
        found[name] = partial(_module, network, SHALLOW if name.startswith(DECODERS) else {})
    with suppress(ImportError):
        from torchvision import models

        for name in WITH_NORMS:
            found.setdefault(name, partial(_vision, models, name, True))
            found[f"{name}{UNTRAINED}"] = partial(_vision, models, name, False)
        found |= {name: partial(_vision, models, name, True) for name in WITHOUT_NORMS}
    return found


def _module(network: Network, sizes: Mapping[str, Any]) -> tuple[nn.Module, Sequence[Any]]:
    module = randomise(network.make(**{**network.full, **sizes}).eval())
    return module, module.example(1)


def _vision(models: Any, name: str, trained: bool) -> tuple[nn.Module, Sequence[Any]]:
    module = models.get_model(name, weights=None).eval()
    return randomise(module) if trained else module, (torch.randn(1, 3, SIZE, SIZE),)


def exported(name: str, make: Maker, folder: Path) -> Path:
    """Return the ONNX file of a network in `folder`, written unless it is there."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        module, inputs = make()
        torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False).save(path)
    return path


def graphs(name: str, make: Maker | None, folder: Path) -> Iterator[Graph]:
    """Yield the graph of an ONNX file, and for a network that is made that of its torch module too.

    What torch cannot export is left out, with a line on stderr.
    """
    readers: list[Callable[[], Graph]] = [lambda: load_network(exported(name, make, folder) if make else name)[0]]
    if make is not None:
        readers.append(lambda: load_network(*make())[0])
    for read in readers:
        try:
            yield read()
        except (AutoschedError, RuntimeError) as error:
            print(f"{name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.shipped_table", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help="names, or ONNX files (default: those of the package)")
    add("--target", action="append", metavar="TARGET", help=f"default: {', '.join(TARGETS)}")
    add("--files", type=Path, metavar="FOLDER", help="of exported networks (default: a temporary one)")
    add(
        "--add", action="store_true", help="keep the decisions of the tables there, add those for sizes far from theirs"
    )
    add("--out", type=Path, default=Path(shipped.__file__).parent, metavar="FOLDER", help="default: the package")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    classes = [
        ProcessorClass(target, find_device(target, shipped.THREADS, runs=False)) for target in args.target or TARGETS
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder, known = args.files or Path(temporary), makers()
        for name in args.networks or SHIPPED:
            for graph in graphs(name, known.get(name), folder):
                for each in classes:
                    each.read(graph)
                print(name, *(len(each.specs) for each in classes), flush=True)
    for each in classes:
        file = path_of(each.device, args.out)
        assert file is not None
        table = each.decide(read_table(file) if args.add else {})
        write_table(file, table)
        print(file.name, f"{len(table)} structures, {file.stat().st_size} bytes", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
