"""The tables of the cost model's features: not measured, but lists that a page would else repeat by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cost_model.cpu.features import FEATURES, Feature
from cost_model.gpu.features import GPU_FEATURES
from experiments.report.markdown import table
from experiments.report.results import Lines

NUMBER = re.compile(r"\d+(?=_)|(?<=_)\d+(?=k$)")  # of an access, a fill or a cache's size, in a name


def named(names: Sequence[str]) -> str:
    """Names, and `access*_bytes` (5) for those that differ in a number only."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(NUMBER.sub("*", name), []).append(name)
    return ", ".join(f"`{some[0]}`" if len(some) == 1 else f"`{name}` ({len(some)})" for name, some in alike.items())


def listing(features: Sequence[Feature]) -> Lines:
    """A row for each formula, with the features that have it, in their order."""
    by_formula: dict[tuple[str, str], list[str]] = {}
    for feature in features:
        by_formula.setdefault((feature.unit, feature.formula), []).append(feature.name)
    rows = [(named(names), unit, formula) for (unit, formula), names in by_formula.items()]
    return [*table(("feature", "unit", "formula"), rows), "", f"*{len(features)} features.*"]


def cpu() -> Lines:
    return listing(FEATURES)


def gpu() -> Lines:
    return listing(GPU_FEATURES)
