"""The field's words: a name stands for one thing, and things have the names that a compiler engineer would look for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_structure import python_files, tree_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("autosched", "search_spaces", "cost_model", "experiments")
# Words that were used for what the field has a name for: (the word in a name, the field's, where it may not stand).
BANNED = (
    ("draft", "partial sketch", "search_spaces/"),
    ("draft", "analytic latency", "cost_model/"),
    ("facts", "access and fusion queries", "search_spaces/"),
    ("hosts?", "fused consumer", "search_spaces/"),
    ("thin", "skinny", "search_spaces/"),
    ("arrivals?|arrives?", "scatter", ""),
    ("running", "prefix scan", "autosched/te/"),
    ("running", "prefix scan", "search_spaces/"),
    ("passing|passes by", "rolling accumulators", "cost_model/"),
    ("passing|passes by", "rolling accumulators", "autosched/codegen/"),
    ("looked up", "gather", "autosched/"),
    ("looked up", "gather", "search_spaces/"),
    ("joining|joins", "loop fusion", "autosched/lower/"),
    ("holding|holds", "loop-invariant hoisting", "autosched/lower/"),
    ("interleaving", "unroll-and-jam", "autosched/lower/"),
    ("pipelining", "multi-stage buffering", "autosched/lower/"),
    ("crowds?|crowded", "set-associativity conflict", "cost_model/"),
    ("crowds?|crowded", "set-associativity conflict", "autosched/codegen/"),
    ("page visits?", "prefetch restart", "cost_model/"),
    ("pages at hand|page found|finds again", "DTLB reach and miss", ""),
    ("lanes awaited", "horizontal-reduction latency", ""),
    ("load shown", "load-port contention", ""),
    ("extremes?", "minima and maxima", ""),
    ("spread", "broadcast", "autosched/codegen/"),
    ("paired", "de-interleaved", "autosched/codegen/"),
    ("picked", "strided load", "autosched/codegen/"),
    ("streamed", "non-temporal", "autosched/"),
    ("plus|minus|times|over|least|most|total|factor", "add, subtract, ...", "autosched/ir/closed_forms/"),
    ("words", "dialect", "autosched/codegen/c/"),
    ("weighted rows?|chained|chain of", "attention, fused reductions", "search_spaces/"),
    ("in another order|turned", "permuted", "search_spaces/"),
    ("in one|in one nest", "fused nest, fused kernel", "search_spaces/"),
    ("rings?", "pipeline", "search_spaces/"),
    ("rings?", "pipeline", "autosched/codegen/"),
    ("rings?", "pipeline", "cost_model/"),
    ("join cases", "merge equal guards", "autosched/lower/"),
    ("place of|places? taken|row places", "loop, row weights", "search_spaces/"),
    ("joined|apart|forms?", "fused, unfused, fusion choice", "autosched/planning/"),
    ("prices?|priced", "predicted latency", "autosched/planning/"),
    ("drafted", "best by the model", "autosched/planning/"),
    ("taken? in", "inlined", "autosched/graph/"),
    ("given? out", "extra output, fused with the reader", "autosched/graph/"),
    ("lies well", "is contiguous", "autosched/graph/"),
    ("tenants?", "buffer, live range", ""),
    ("facts", "node properties, operand access", "autosched/graph/fusion/"),
    ("place of weights|without place", "weight residency", "autosched/planning/"),
    ("wanted|told|said|asked", "expected, given or read values by name", "autosched/graph/"),
    ("forms?", "variant, expression", "autosched/graph/"),
    ("found|made|known|wanted|told|said|asked|given", "the thing by its name", "autosched/planning/"),
    ("found|made|known|wanted|told|said|asked|given", "the thing by its name", "autosched/artifacts/"),
    ("share common", "common subexpression elimination", ""),
    ("know powers|known powers", "strength reduction", ""),
    ("turn weights", "weight layout transform", ""),
    ("compose parts|view parts", "slice canonicalisation, views of slices", ""),
    ("ahead", "constant launches, constant folding at load time", "autosched/executor/"),
    ("standings?|whose", "task state, task scheduler", "autosched/network_tuning/"),
    ("turns?", "round", "autosched/network_tuning/task"),
    ("closing", "reserved finalisation time", "autosched/network_tuning/"),
    ("place", "tuning context", "autosched/network_tuning/"),
    ("contests?|contestants?|verdicts?", "interleaved end-to-end comparison", "autosched/network_tuning/"),
    ("contests?|contestants?", "interleaved end-to-end comparison, peer", "autosched/cli/network/"),
    ("open parts?|forms?", "undecided fusion, fusion choice", "autosched/network_tuning/"),
    ("beside|improved?|improving", "background tuning, hot swap", "autosched/network_tuning/"),
    ("planned", "ahead-of-time estimate", "autosched/network_tuning/"),
    ("asked|asks", "options, parse", "autosched/network_tuning/"),
    ("asked|asks", "options", "autosched/tuner/"),
    ("subjects?", "task info", "autosched/tuner/"),
    ("audience|hears", "callbacks", "autosched/tuner/"),
    ("room", "memory check", "autosched/tuner/"),
    ("room", "memory check", "autosched/executor/"),
    ("loosened|closeness|near ties", "error metric, tolerance", "autosched/verification/"),
    ("pictures?|signs?", "rendering", "autosched/inspection/"),
    ("homes?|stamps?|parts?", "aliased input, version, subgraph", "autosched/torch_backend/"),
    ("orders", "memory format", "autosched/torch_backend/"),
    ("roofs", "measured rooflines", ""),
    ("tell|tells|beside|said", "warn, description", "autosched/kernel/"),
    ("parts?", "compilation unit", "autosched/kernel/"),
    ("workshop", "worker pool", ""),
    ("beside|passing|undisturbed", "input address, bytes between calls, fastest sample", "autosched/measure/"),
    ("glance|adopted|settled|look into", "fast path, wrapped, materialised", "autosched/runtime/"),
    ("by hand", "handwritten", "autosched/"),
    (
        "found|made|places?|placed|wanted|asked|held|holding|together|apart|ahead",
        "thing by name",
        "autosched/codegen/c/",
    ),
    ("let go", "copied to registers of their own", "autosched/codegen/c/"),
    *(("found", "thing by its name", f"autosched/{p}/") for p in ("cli", "codegen", "graph", "ir", "runtime", "te")),
    ("yardsticks?", "peak rate", "autosched/"),
    ("blind|keeper|form|found|made|wanted|said", "must synchronise, owner, interface, ...", "autosched/runtime/gpu/"),
    ("meet|meets|meetings?", "launch overlap, barrier", "autosched/codegen/c/"),
    ("forms?|word by word|grain", "vector, descriptor, element by element, row", "autosched/codegen/c/"),
    ("drafted|relatives?", "predicted, nearest shapes", "autosched/kernel/"),
)
# Classes of one name that are one idea for two kinds of machine, or a protocol and what fulfils it.
DRIVERS = ("cuda_core", "pycuda", "opencl", "fake")
STEP_AND_STATEMENT = {"Prefetch"}  # a step of a schedule, and the statement that it becomes


def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): tree_of(path) for path in python_files(*PACKAGES)}


@cache
def names() -> tuple[tuple[Path, int, str], ...]:
    """Places with their names, those of the modules too."""
    return tuple((path, *found) for path, tree in trees().items() for found in (*_names(tree), (1, path.stem)))


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Of modules' functions and classes, of their methods, fields and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        if isinstance(node, ast.FunctionDef):
            given = node.args
            yield from ((a.lineno, a.arg) for a in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


@cache
def _words(name: str) -> str:
    """`_isPageVisit` and `is_page_visit` alike: the words of a name, apart."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).strip().lower()


def _has(word: str, name: str) -> bool:
    return re.search(rf"(^| )({word})( |$)", _words(name)) is not None


def test_things_have_the_field_s_names():
    places = defaultdict(list)
    for path, line, name in names():
        places[name].append((str(path), line))
    found = [
        f"{path}:{line}: {name}: say {field}"
        for word, field, where in BANNED
        for name in places
        if _has(word, name)
        for path, line in places[name]
        if path.startswith(where)
    ]
    assert not found, "\n".join(found)


def test_words_of_a_name_are_told_apart():
    assert _has("page visits?", "page_visit")
    assert _has("page visits?", "PageVisits")
    assert _has("thin", "is_thin")
    assert not _has("thin", "nothing_within")


def _is_pair(paths: list[Path]) -> bool:
    """Whether the modules are one another's for a processor and for a GPU, or drivers of devices."""
    if all(path.stem in DRIVERS for path in paths):
        return True
    folders = {path.parent.name for path in paths}
    return folders == {"cpu", "gpu"} and len({path.parents[1] for path in paths}) == 1


def test_a_class_name_stands_for_one_class():
    homes: dict[str, list[Path]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            is_protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in node.bases)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_protocol:
                homes[node.name].append(path)
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1 and name not in STEP_AND_STATEMENT}
    twice = [f"{name}: {', '.join(map(str, paths))}" for name, paths in shared.items() if not _is_pair(paths)]
    assert not twice
