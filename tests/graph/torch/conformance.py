"""Which of torch's own samples of operators are taken and computed as torch computes them.

    python -m tests.graph.torch.conformance             all operators; how many pass, and why others do not
    python -m tests.graph.torch.conformance --update    writes those that pass into the list, which may only grow
    python -m tests.graph.torch.conformance softmax     the operators whose name has this word, each with its outcome

A case is an operator in a type; it passes where its first samples do, with all that torch makes of it below autograd.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph
from autosched.graph.interpret import interpret
from autosched.graph.torch.builder import array_of, dtype_name
from autosched.graph.torch.load import decompositions, drop_empty_parts, load_fx
from tests.graph.outcomes import Outcome, in_processes

LIST = Path(__file__).with_name("passed.txt")
DTYPES = (torch.float32, torch.int64, torch.bool)
SAMPLES = 2
MOST = 1024  # elements of a sample's tensors: larger ones say no more
PASSED = "passed"
CASE_S = 60
Run = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Case:
    """`info`: torch's OpInfo, which knows the operator and makes samples."""

    info: Any
    dtype: torch.dtype

    @property
    def name(self) -> str:
        variant = f".{self.info.variant_test_name}" if self.info.variant_test_name else ""
        return f"{self.info.name}{variant}:{dtype_name(self.dtype)}"


def all_cases() -> list[Case]:
    return [Case(info, dtype) for info in op_db for dtype in DTYPES if dtype in info.supported_dtypes("cpu")]


def samples_of(case: Case) -> Iterator[Any]:
    torch.manual_seed(0)
    yield from itertools.islice(case.info.sample_inputs("cpu", case.dtype, requires_grad=False), 4 * SAMPLES)


def outcome_of(case: Case, run: Run = interpret) -> Outcome:
    count = 0
    for sample in samples_of(case):
        function, tensors = as_function(case.info, sample)
        if not tensors or sum(x.numel() for x in tensors) > MOST or any(x.numel() == 0 for x in tensors):
            continue
        try:
            why = difference(function, tensors, run)
        except GraphError as error:
            return Outcome("refused", str(error))
        if why:
            return Outcome("wrong", why)
        count += 1
        if count == SAMPLES:
            break
    return Outcome(PASSED) if count else Outcome("refused", "no sample of tensors with elements")


def as_function(info: Any, sample: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The operator as a function of the tensors of a sample, which gives tensors."""
    flat, form = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [n for n, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(flat)
        for n, x in zip(places, tensors, strict=True):
            given[n] = x
        x, args, kwargs = pytree.tree_unflatten(given, form)
        made = info(x, *args, **kwargs)
        return [y for y in pytree.tree_leaves(made) if isinstance(y, torch.Tensor)]

    return function, [flat[n] for n in places]


def difference(function: Callable[..., Any], tensors: Sequence[torch.Tensor], run: Run) -> str:
    """What is different between torch and the graph, or nothing. Raises GraphError for what is not taken."""
    with torch.no_grad():
        expected = function(*(x.clone() for x in tensors))
        functional: Any = torch.func.functionalize(function, remove="mutations")
        module = make_fx(functional, decomposition_table=table(), tracing_mode="fake")(*tensors)
    drop_empty_parts(module.graph)
    graph = load_fx(module, tensors)
    arrays = [array_of(x.contiguous()) for x in tensors]
    given = dict(zip(graph.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        found = run(graph, given)
    for name, theirs in zip(graph.outputs, expected, strict=True):
        ours = found[name]
        wanted = array_of(theirs.contiguous())
        if (ours.dtype, ours.shape) != (wanted.dtype, wanted.shape):
            return f"{name}: {ours.dtype}{list(ours.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        same = np.isclose(ours, wanted, rtol=2e-4, atol=2e-5, equal_nan=True)
        if not same.all():
            return f"{name}: {int((~same).sum())} of {same.size} elements are different"
    return ""


@cache
def table() -> dict[Any, Any]:
    return decompositions()


def listed() -> list[str]:
    return LIST.read_text(encoding="utf-8").splitlines()


def outcomes(cases: Sequence[Case]) -> Iterator[tuple[str, Outcome]]:
    def prepare() -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")

    yield from ((case.name, found) for case, found in in_processes(cases, outcome_of, CASE_S, prepare))


def reasons(why: str) -> list[str]:
    """The operators that a refusal names, to count them."""
    _, _, named = why.partition("do not take: ")
    return [word.partition(":")[0].partition(" (")[0] for word in named.split("; ")] if named else [why]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="operators whose name has this word")
    parser.add_argument("--update", action="store_true", help="write those that pass into the list")
    args = parser.parse_args()
    cases = [case for case in all_cases() if args.word in case.name]
    found = dict(outcomes(cases))
    for name, outcome in found.items():
        if args.word or outcome.kind in ("wrong", "crashed"):
            print(f"{name}: {outcome.kind} {outcome.why}".rstrip())
    passed = {name for name, outcome in found.items() if outcome.kind == PASSED}
    known = set(listed()) if LIST.exists() else set()
    lost = sorted(known.intersection(found) - passed)
    print(", ".join(f"{kind}: {n}" for kind, n in Counter(o.kind for o in found.values()).most_common()))
    if not args.word:
        refused = Counter(word for o in found.values() if o.kind == "refused" for word in reasons(o.why))
        print(*(f"{count:5} {word}" for word, count in refused.most_common()), sep="\n")
    if lost:
        print(f"no longer passed: {', '.join(lost)}")
    if args.update:
        LIST.write_text("".join(f"{name}\n" for name in sorted(known | passed)), encoding="utf-8")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
