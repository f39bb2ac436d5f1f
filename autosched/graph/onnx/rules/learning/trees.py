"""Rules of ensembles of decision trees, which all rows descend at once, a level in each step.

The trees are tables with a row for every node. A leaf is a node whose branches lead to itself, so a row that has come
to one stays there while others descend.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array
from autosched.graph.onnx.rules.learning.features import ML
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.graph.operators.gathers import UNCHECKED

# The comparisons of a feature with a number; ONNX's numbers of them are the places in this list.
COMPARISONS = ("less_equal", "less", "greater_equal", "greater", "equal", "not_equal")
BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MEMBER = 6  # number of the comparison with each of a set of numbers
REDUCTIONS = {"SUM": "reduce_sum", "AVERAGE": "reduce_sum", "MIN": "reduce_min", "MAX": "reduce_max"}
NEUTRAL = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


@dataclass(frozen=True)
class Trees:
    """Nodes of trees by number: which feature is compared how with which number, and the next nodes. `nan_is_true`:
    whether NaN leads to the true branch; `roots`: the first node of each tree."""

    feature: Array
    comparison: Array
    number: Array
    nan_is_true: Array
    true: Array
    false: Array
    roots: Array

    def depth(self) -> int:
        """Return the largest number of comparisons of a row in a tree."""
        nodes, depth = self.roots, 0
        while (is_inner := self.true[nodes] != nodes).any():
            nodes, depth = (
                np.unique(np.concatenate([self.true[nodes[is_inner]], self.false[nodes[is_inner]]])),
                depth + 1,
            )
            if depth > len(self.true):
                raise GraphError("its trees have a node that leads back to itself")
        return depth


def leaves_of(site: Site, x: str, trees: Trees) -> str:
    """Return the leaf that each row of x comes to in each tree, [rows, trees]."""
    rows, columns = site.shape(x)
    if trees.feature.size and not 0 <= trees.feature.min() <= trees.feature.max() < columns:
        raise GraphError(f"its trees compare the feature {trees.feature.max()}, and there are {columns}")
    at = site.constant(np.broadcast_to(trees.roots, (rows, len(trees.roots))), "int64")
    tables = {name: site.constant(getattr(trees, name), "int64") for name in ("feature", "comparison", "true", "false")}
    numbers, nan_is_true = site.constant(trees.number, site.dtype(x)), site.constant(trees.nan_is_true, "bool")

    def of_nodes(table: str) -> str:
        return site.emit("gather", table, at, axis=0, indexing=UNCHECKED)

    is_inner = trees.true != np.arange(len(trees.true))
    kinds = sorted({int(kind) for kind in trees.comparison[is_inner]})
    for _ in range(trees.depth()):
        element = site.emit("gather_elements", x, of_nodes(tables["feature"]), axis=1, indexing=UNCHECKED)
        number = of_nodes(numbers)
        holds = site.emit(COMPARISONS[kinds[0]], element, number)
        for kind in kinds[1:]:
            is_kind = site.emit("equal", of_nodes(tables["comparison"]), site.constant(kind, "int64"))
            holds = site.emit("where", is_kind, site.emit(COMPARISONS[kind], element, number), holds)
        if trees.nan_is_true.any():
            is_nan = site.emit("logical_and", site.emit("isnan", element), of_nodes(nan_is_true))
            holds = site.emit("logical_or", holds, is_nan)
        at = site.emit("where", holds, of_nodes(tables["true"]), of_nodes(tables["false"]))
    return at


def aggregated(site: Site, leaves: str, weights: Array, function: str) -> str:
    """Return the sum, mean or the like over trees of the weights of their leaves, [rows, results]; weights [nodes,
    results] are NaN where a leaf has none."""
    refuse(function not in REDUCTIONS, f"the aggregate function {function}")
    filled = np.where(np.isnan(weights), NEUTRAL[function], weights)
    rows = site.emit("gather", site.constant(filled, "float32"), leaves, axis=0, indexing=UNCHECKED)
    y = site.emit(REDUCTIONS[function], rows, axes=(1,), keepdims=False)
    count = site.shape(leaves)[1]
    return site.emit("div", y, site.constant(count, "float32")) if function == "AVERAGE" else y


def trees_by_id(site: Site) -> tuple[Trees, Mapping[tuple[int, int], int]]:
    """Return the trees of nodes that are named by tree and node, and the number of each node by these."""
    names = [*zip(site.attribute("nodes_treeids"), site.attribute("nodes_nodeids"), strict=True)]
    number_of = {name: n for n, name in enumerate(names)}
    modes = site.attribute("nodes_modes")

    def branch(side: str) -> Array:
        ends = zip(names, modes, site.attribute(f"nodes_{side}nodeids"), strict=True)
        try:
            return np.array([number_of[name if mode == "LEAF" else (name[0], to)] for name, mode, to in ends])
        except KeyError as error:
            raise GraphError(f"a branch of its trees leads to the node {error.args[0]}, which there is not") from error

    true, false = branch("true"), branch("false")
    if unknown := sorted(set(modes) - {*BRANCHES, "LEAF"}):
        raise GraphError(f"the comparison {unknown[0]} is not supported")
    is_leaf = np.array([mode == "LEAF" for mode in modes])
    inner = {int(to) for side in (true, false) for to, leaf in zip(side, is_leaf, strict=True) if not leaf}
    roots = {tree: n for n, (tree, _) in reversed([*enumerate(names)]) if n not in inner}
    track = site.attribute("nodes_missing_value_tracks_true") or (0,) * len(names)
    site.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    return (
        Trees(
            np.where(is_leaf, 0, np.asarray(site.attribute("nodes_featureids"))),
            np.array([0 if mode == "LEAF" else BRANCHES.index(mode) for mode in modes]),
            numbers_of(site, "nodes_values"),
            np.asarray(track, bool) & ~is_leaf,
            true,
            false,
            np.array([roots[tree] for tree in sorted(roots)]),
        ),
        number_of,
    )


def numbers_of(site: Site, name: str) -> Array:
    """Return a list of floats, which may be a tensor."""
    tensor = site.attribute(f"{name}_as_tensor")
    numbers = site.attribute(name) or ()
    return np.asarray(numbers if tensor is None else tensor, np.float64).reshape(-1)


def weights_of(site: Site, what: str, number_of: Mapping[tuple[int, int], int], size: int) -> Array:
    """Return the weights [nodes, size] of targets or classes, added up; NaN where a node has none."""
    trees, nodes, columns = (site.attribute(f"{what}_{name}ids") for name in ("tree", "node", ""))
    weights: dict[tuple[int, int], list[float]] = defaultdict(list)
    for tree, node, column, weight in zip(trees, nodes, columns, numbers_of(site, f"{what}_weights"), strict=True):
        weights[number_of[tree, node], column].append(float(weight))
    table = np.full((len(number_of), size), np.nan)
    for place, given in weights.items():
        table[place] = sum(given)
    return table


@rule("TreeEnsembleRegressor", domain=ML)
def regress(site: Site) -> Results:
    trees, number_of = trees_by_id(site)
    size = site.attribute("n_targets")
    weights = weights_of(site, "target", number_of, size)
    x = site.input(0)
    x = x if site.is_float(x) else site.cast(x, "float32")
    y = aggregated(site, leaves_of(site, x, trees), weights, site.attribute("aggregate_function", "SUM"))
    base = numbers_of(site, "base_values")
    y = site.emit("add", y, site.constant(base, "float32")) if base.size else y
    transform = site.attribute("post_transform", "NONE")
    if transform == "SOFTMAX":
        return site.emit("softmax", y, axis=1)
    refuse(transform != "NONE", f"the transform {transform}")
    return y


@rule("TreeEnsembleClassifier", domain=ML)
def classify(site: Site) -> Results:
    """The label of the highest score, and the scores. Where one of two classes alone has a score, it is as in ONNX
    Runtime: class 1 has one above 0, or above 1/2 of weights without a sign; that of class 0 counts as the score of
    class 1, and class 0 has its opposite, or what is left to 1."""
    trees, number_of = trees_by_id(site)
    labels, names = site.attribute("classlabels_int64s"), site.attribute("classlabels_strings")
    refuse(labels is None and site.is_output_used(0), "labels that are strings")
    size, ids = len(labels or names or ()), set(site.attribute("class_ids"))
    transform = site.attribute("post_transform", "NONE")
    refuse(transform not in ("NONE", "LOGISTIC", "SOFTMAX"), f"the transform {transform}")
    weights = weights_of(site, "class", number_of, size)
    x = site.input(0)
    x = x if site.is_float(x) else site.cast(x, "float32")
    scores, base = aggregated(site, leaves_of(site, x, trees), weights, "SUM"), numbers_of(site, "base_values")
    is_single = size == 2 and len(ids) == 1
    refuse(base.size not in (0, size) or (is_single and base.size > 0), f"{base.size} base values of {size} classes")
    scores = site.emit("add", scores, site.constant(base, "float32")) if base.size else scores
    if is_single:
        has_signs, (column,) = bool((weights < 0).any()), ids
        score = site.part(scores, 1, column, column + 1)
        above = site.emit("greater", score, site.constant(0.0 if has_signs else 0.5, "float32"))
        place = site.cast(site.reshape(above, site.shape(x)[:1]), "int64")
        if column == 0:
            negates = has_signs or transform == "LOGISTIC"
            rest = site.emit("neg", score) if negates else site.emit("sub", site.constant(1.0, "float32"), score)
            scores = site.emit("concat", rest, score, axis=1)
            transform = "NONE" if transform == "SOFTMAX" else transform
    else:
        place = site.emit("argmax", scores, axis=1, keepdims=False, last=False)
    if transform != "NONE":
        scores = site.emit("softmax", scores, axis=1) if transform == "SOFTMAX" else site.emit("sigmoid", scores)
    if labels is None:
        return "", scores
    return site.emit("gather", site.constant(labels, "int64"), place, axis=0, indexing=UNCHECKED), scores


@rule("TreeEnsemble", domain=ML)
def by_numbers(site: Site) -> Results:
    """Trees of nodes and leaves that are numbered apart."""
    columns = {
        name: [*np.asarray(site.attribute(f"nodes_{name}")).reshape(-1).tolist()]
        for name in ("featureids", "modes", "splits", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
    }
    track = site.attribute("nodes_missing_value_tracks_true")
    columns["tracks"] = [0] * len(columns["modes"]) if track is None else [*track]
    site.ignore("nodes_hitrates")
    write_sets_out(columns, site.attribute("membership_values"))
    targets, n = [*site.attribute("leaf_targetids")], len(columns["modes"])
    leaves, nothing = np.arange(n, n + len(targets)), np.zeros(len(targets))
    true, false = (
        np.add(columns[f"{side}nodeids"], np.multiply(columns[f"{side}leafs"], n)) for side in ("true", "false")
    )
    trees = Trees(
        np.concatenate([columns["featureids"], nothing]).astype(np.int64),
        np.concatenate([columns["modes"], nothing]).astype(np.int64),
        np.concatenate([columns["splits"], nothing]),
        np.concatenate([columns["tracks"], nothing]).astype(bool),
        np.concatenate([true, leaves]).astype(np.int64),
        np.concatenate([false, leaves]).astype(np.int64),
        np.asarray(site.attribute("tree_roots"), np.int64),
    )
    weights = np.full((n + len(targets), site.attribute("n_targets")), np.nan)
    weights[leaves, targets] = np.asarray(site.attribute("leaf_weights"), np.float64).reshape(-1)
    function = ("AVERAGE", "SUM", "MIN", "MAX")[site.attribute("aggregate_function", 1)]
    transform = site.attribute("post_transform", 0)
    refuse(transform not in (0, 1), f"the transform {transform}")
    x = site.input(0)
    y = site.cast(aggregated(site, leaves_of(site, x, trees), weights, function), site.dtype(x))
    return site.emit("softmax", y, axis=1) if transform else y


def write_sets_out(columns: dict[str, list[Any]], members: Array | None) -> None:
    """Replace each comparison with a set by one with its first number, whose false branch is one with the next.

    The sets are concatenated, each followed by NaN.
    """
    numbers = iter([] if members is None else np.asarray(members, np.float64).reshape(-1).tolist())
    for node in range(len(columns["modes"])):
        if columns["modes"][node] != MEMBER:
            continue
        own = [*takewhile(lambda number: number == number, numbers)]
        refuse(not own, "a comparison with an empty set")
        row = {name: column[node] for name, column in columns.items()} | {"modes": COMPARISONS.index("equal")}
        places = [node, *range(len(columns["modes"]), len(columns["modes"]) + len(own) - 1)]
        for place, after, number in zip(places, [*places[1:], None], own, strict=True):
            end = {} if after is None else {"falsenodeids": after, "falseleafs": 0}
            for name, value in (row | {"splits": number} | end).items():
                columns[name][place : place + 1] = [value]
