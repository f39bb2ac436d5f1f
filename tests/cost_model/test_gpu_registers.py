"""What the rules let through, NVIDIA's compiler takes without spilling registers, and with as many as estimated.

Candidates are random ones that pass all rules, half of them among the best tenth of the analytic latency. Needs nvcc
and no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.runtime.gpu.compile import Resources, parse_resources
from autosched.target import Target, parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model.gpu.latency import gpu_analytic_latency
from cost_model.gpu.machine import gpu_machine
from cost_model.model import CostModel
from search_spaces.gpu import sketches
from search_spaces.space import Sketch, sample, unique
from tests.codegen.nvcc import resources

N = 42  # two of each operator: one for each architecture
WITHOUT_SPILLS = 0.95
# workload, shape (None: its own), settings
OPERATORS: tuple[tuple[str, tuple[int, ...] | None, dict[str, Any]], ...] = (
    ("gmm", (1, 1024, 1024, 1024), {}), ("gmm", (1, 100, 130, 77), {}),
    ("conv2d", (1, 56, 56, 64, 64, 3, 1, 1), {}), ("conv2d", (1, 28, 28, 128, 128, 3, 2, 1), {"layout": "NCHW"}),
    ("depthwise", None, {}), ("grp", None, {}), ("t2d", None, {}), ("softmax", None, {}), ("layer_norm", None, {}),
    ("max_pool2d", None, {}), ("avg_pool2d", None, {}), ("tbg", None, {}), ("winograd", None, {}), ("c3d", None, {}),
    ("transpose", None, {}), ("elementwise", None, {}), ("cbr", None, {}), ("dil", None, {}), ("c1d", None, {}),
    ("nrm", None, {}), ("cap", None, {}),
)  # fmt: skip
ROWS = 1000  # drawn from each sketch
BEST = 10  # one of so many by analytic latency
SLACK = 64  # bytes: gaps between arrays, and what the closed form keeps for an exchange that a single warp goes without


@dataclass(frozen=True)
class Candidate:
    """`registers`, `shared`: what the cost model says of each launch."""

    label: str
    source: GpuSource
    registers: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass
class Agreement:
    """What the compiler made of the candidates. Ratios are of registers used to registers estimated."""

    candidates: int
    spilling_candidates: int = 0
    correlation: float = 0.0
    mean_ratio: float = 0.0
    wrong_shared: list[str] = field(default_factory=list)
    spills: list[str] = field(default_factory=list)

    @property
    def share_without_spills(self) -> float:
        return 1.0 - self.spilling_candidates / max(1, self.candidates)


def draw(n: int, target: Target, seed: int = 0, operators: Sequence[Any] = OPERATORS) -> list[Candidate]:
    """About `n` candidates, as many of each operator, that pass all rules."""
    rng = np.random.default_rng(seed)
    found: list[Candidate] = []
    each = -(-n // len(operators))
    for operator in operators:
        found += list(_of_operator(operator, each, target, rng, len(found)))
    return found


def _of_operator(
    operator: tuple[str, tuple[int, ...] | None, dict[str, Any]],
    n: int,
    target: Target,
    rng: np.random.Generator,
    first: int,
) -> Iterator[Candidate]:
    name, shape, settings = operator
    dag, _ = build(name, shape, settings)
    every = sketches(collapse(dag), target)
    chosen = [every[i] for i in rng.permutation(len(every))[:n]]
    model = CostModel([lower(s.state) for s in chosen], [tuple(p.name for p in s.params) for s in chosen], target, 1)
    for number in range(n):
        i = number % len(chosen)
        row = _row(chosen[i], model, i, rng, best=number % 2 == 0)
        if row is not None:
            values = {p.name: int(v) for p, v in zip(chosen[i].params, row, strict=True)}
            yield _candidate(f"{name} {chosen[i].name} {values}", model, i, values, target, first + number)


def _row(
    sketch: Sketch, model: CostModel, i: int, rng: np.random.Generator, best: bool
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    rows = unique(sample(sketch, ROWS, rng)) if sketch.params else np.zeros((1, 0), np.int64)
    rows = rows[model.legal(i, rows)]
    if not len(rows):
        return None
    if best:
        rows = rows[np.argsort(model.analytic_latency(i, rows))[: 1 + len(rows) // BEST]]
    row: np.ndarray[Any, np.dtype[np.int64]] = rows[rng.integers(len(rows))]
    return row


def _candidate(label: str, model: CostModel, i: int, values: dict[str, int], target: Target, number: int) -> Candidate:
    sketch = model.sketches[i]
    source = build_source(replace(sketch.func, name=f"candidate{number}"), values, parse_target("cuda"))
    costs = gpu_analytic_latency(sketch.analysis, gpu_machine(target)).kernels
    forms = [form for cost in costs for form in (cost.registers, cost.kernel.shared)]
    said = Program(forms, list(values))(np.array([list(values.values())], np.int64))[:, 0]
    return Candidate(label, source, tuple(map(int, said[::2])), tuple(map(int, said[1::2])))


def compile_together(candidates: Sequence[Candidate], arch: str, directory: Path) -> dict[str, Resources]:
    """What ptxas says of every kernel."""
    texts = [f"namespace part{n} {{\n{c.source.text}}}\n" for n, c in enumerate(candidates)]
    return {r.kernel: r for r in parse_resources(resources("".join(texts), arch, directory))}


def compare(candidates: Sequence[Candidate], taken: dict[str, Resources]) -> Agreement:
    result = Agreement(len(candidates))
    said, used = [], []
    for c in candidates:
        found = [taken[launch.kernel] for launch in c.source.launches]
        spilled = sum(r.spill_bytes for r in found)
        if spilled:
            result.spilling_candidates += 1
            result.spills.append(f"{c.label}: {spilled} bytes")
        for estimate, shared, launch, r in zip(c.registers, c.shared, c.source.launches, found, strict=True):
            said.append(estimate)
            used.append(r.registers)
            if not launch.shared_bytes <= shared <= launch.shared_bytes + SLACK:
                result.wrong_shared.append(f"{c.label}: {shared} said, {launch.shared_bytes} in the code")
    ratios = np.array(used) / np.array(said)
    result.correlation = float(np.corrcoef(said, used)[0, 1])
    result.mean_ratio = float(ratios.mean())
    return result


@pytest.fixture(scope="module")
def candidates() -> list[Candidate]:
    return draw(N, parse_target("cuda"), seed=3)


@pytest.mark.parametrize(("arch", "first"), [("sm_80", 0), ("sm_90", 1)])
def test_the_compiler_agrees_with_the_estimates(
    candidates: list[Candidate], arch: str, first: int, tmp_path: Path
) -> None:
    assert len(candidates) >= 0.9 * N
    own = candidates[first::2]
    agreement = compare(own, compile_together(own, arch, tmp_path))
    assert agreement.share_without_spills >= WITHOUT_SPILLS, agreement.spills
    assert agreement.correlation > 0.8
    assert 0.6 < agreement.mean_ratio < 1.2
    assert not agreement.wrong_shared
