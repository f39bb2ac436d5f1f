"""The tables that a page can have: name, the result files that they are made of, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autosched.errors import UsageError
from experiments.report import contests, cycles, features, gpu, models, network_curves, networks, pipelines, regret
from experiments.report.results import Lines, load


@dataclass(frozen=True)
class Section:
    """`make` takes the results of `files` in their order. Where these may be missing, `command` makes them."""

    name: str
    files: tuple[str, ...]
    make: Callable[..., Lines]
    command: str = ""

    def lines(self, folder: Path) -> Lines:
        """Raises UsageError for a file that is missing and must not be."""
        if self.command and not all((folder / f"{file}.json").exists() for file in self.files):
            return [f"Not measured yet; `{self.command}` does it."]
        return self.make(*(load(folder, file) for file in self.files))


ZEN4, EMERALD, AVX2 = "scoreboard", "scoreboard_emeraldrapids", "scoreboard_avx2"
_ALL = (
    Section("headline", (ZEN4, EMERALD, AVX2), contests.headline),
    Section("scoreboard", (ZEN4,), contests.board),
    Section("families", (ZEN4,), contests.families),
    Section("roofline", (ZEN4,), contests.roofline),
    Section("searches", (ZEN4,), contests.searches),
    Section("torch-compile", ("torch_compile",), contests.compiled),
    Section("products", ("sgemm", ZEN4), contests.products),
    Section("cycles", ("cycles",), cycles.by_operator),
    Section("scoreboard-avx2", (AVX2,), contests.board),
    Section("scoreboard-emeraldrapids", (EMERALD,), contests.board),
    Section("roofline-emeraldrapids", (EMERALD,), contests.roofline),
    Section("searches-emeraldrapids", (EMERALD,), contests.searches),
    Section("metaschedule", (ZEN4, EMERALD, "cycles_metaschedule"), cycles.metaschedule),
    Section("tuning-n1", ("tuning_curves-c2d-3-n1",), models.tuning),
    Section("tuning-n16", ("tuning_curves-c2d-3-n16",), models.tuning),
    Section("opt-ins", ("opt_ins",), contests.opt_ins),
    Section("cost-model", ("cost_model_quality",), models.quality),
    Section("throughput", ("search_throughput",), models.throughput),
    Section("networks", ("networks",), networks.networks),
    Section(
        "network-curves", ("network_curves",), network_curves.network_curves, "python -m experiments.network_curves"
    ),
    Section("pipelines", ("pipelines",), pipelines.pipelines, "python -m experiments.pipelines --threads 1,2"),
    Section("regret", ("regret",), regret.regret, "python -m experiments.regret"),
    Section("gpu", ("gpu/nvidia-h200-scoreboard",), gpu.board),
    Section("gpu-h100", ("gpu/nvidia-h100-scoreboard",), gpu.board),
    Section("gpu-networks", ("gpu/nvidia-h100",), gpu.whole_networks),
    Section("cpu-features", (), features.cpu),
    Section("gpu-features", (), features.gpu),
)
SECTIONS = {section.name: section for section in _ALL}


def lines_of(name: str, folder: Path) -> Lines:
    """The table `name` of the results in `folder`. Raises UsageError for an unknown name or a file that is missing."""
    section = SECTIONS.get(name)
    if section is None:
        raise UsageError(f"there is no table `{name}`; there are {', '.join(SECTIONS)}")
    return section.lines(folder)
