"""Rules of features: counted n-grams, selected columns, labels, scaled and completed rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.graph.operators.gathers import PLAIN

ML = "ai.onnx.ml"  # the domain of these operators


@rule("TfIdfVectorizer")
def tf_idf(site: Site) -> Results:
    """Count the n-grams of a pool of integers in each row, each with its weight, or say which are there (IDF)."""
    x, mode = site.input(0), site.attribute("mode")
    refuse(site.attribute("pool_strings") is not None, "a pool of strings")
    shape = site.shape(x)
    refuse(len(shape) > 2, f"n-grams of the shape {list(shape)}")
    rows = site.cast(site.reshape(x, (1, *shape)[-2:] if shape else (1, 1)), "int64")
    columns = site.attribute("ngram_indexes")
    weights = site.attribute("weights") or (1.0,) * len(columns)
    refuse(mode not in ("TF", "IDF", "TFIDF"), f"the mode {mode}")
    refuse(mode == "IDF" and len(set(columns)) < len(columns), "IDF of several n-grams of one column")
    if len(weights) != len(columns):
        raise GraphError(f"its {len(weights)} weights are not those of {len(columns)} n-grams")
    parts = []
    for counts, grams in counted(site, rows):
        if mode == "IDF":
            counts = site.cast(site.emit("greater", counts, site.constant(0.0, "float32")), "float32")
        if mode != "TF":
            counts = site.emit("mul", counts, site.constant([weights[n] for n in grams], "float32"))
        parts.append((counts, [columns[n] for n in grams]))
    size = max(columns) + 1
    nothing = site.constant(np.zeros((site.shape(rows)[0], 1)), "float32")
    return site.reshape(by_column(site, parts, nothing, size), (*shape[:-1], size))


def counted(site: Site, rows: str) -> list[tuple[str, range]]:
    """Return the counts [rows, n-grams] of the n-grams of each length, and which of all n-grams these are.

    An n-gram may have up to `max_skip_count` elements between two of its own, always as many.
    """
    starts, pool = site.attribute("ngram_counts"), np.asarray(site.attribute("pool_int64s"), np.int64)
    least, most = site.attribute("min_gram_length"), site.attribute("max_gram_length")
    skips, (n_rows, width) = site.attribute("max_skip_count"), site.shape(rows)
    counts, first = [], 0
    for n, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        grams = pool[start : start + (end - start) // n * n].reshape(-1, n)
        own, first = range(first, first + len(grams)), first + len(grams)
        if not len(grams) or not least <= n <= most:
            continue
        steps = range(1, skips + 2) if n > 1 else (1,)
        places = [p + np.arange(n) * step for step in steps for p in range(width - (n - 1) * step)]
        if not places:
            continue
        windows = site.emit("gather", rows, site.constant(places, "int64"), axis=1, indexing=PLAIN)
        wide = site.reshape(windows, (n_rows, len(places), 1, n))
        equal = site.emit("equal", wide, site.constant(grams[None, None], "int64"))
        is_there = site.cast(site.emit("reduce_all", equal, axes=(3,), keepdims=False), "float32")
        counts.append((site.emit("reduce_sum", is_there, axes=(1,), keepdims=False), own))
    return counts


def by_column(site: Site, parts: Sequence[tuple[str, Sequence[int]]], nothing: str, size: int) -> str:
    """Return counts by column of the result, [rows, size]: the sums of those of its n-grams, or `nothing`."""
    sources: dict[int, list[int]] = defaultdict(list)
    for place, column in enumerate(column for _, columns in parts for column in columns):
        sources[column].append(place)
    whole = site.emit("concat", *(name for name, _ in parts), nothing, axis=1) if parts else nothing
    last, total = site.shape(whole)[1] - 1, ""
    for layer in range(max(map(len, sources.values()), default=1)):
        ids = [sources[c][layer] if len(sources.get(c, ())) > layer else last for c in range(size)]
        part = site.emit("gather", whole, site.constant(ids, "int64"), axis=1, indexing=PLAIN)
        total = site.emit("add", total, part) if total else part
    return total


@rule("ArrayFeatureExtractor", domain=ML)
def columns_of(site: Site) -> Results:
    """The columns that the second input names; a vector is a row."""
    x, ids = site.input(0), site.input(1)
    count = int(np.prod(site.shape(ids)))
    rows = site.reshape(x, (1, *site.shape(x))) if site.rank(x) == 1 else x
    return site.emit("gather", rows, site.reshape(ids, (count,)), axis=site.rank(rows) - 1, indexing=PLAIN)


@rule("Binarizer", domain=ML)
def binarize(site: Site) -> Results:
    x = site.input(0)
    above = site.emit("greater", x, site.constant(site.attribute("threshold", 0.0), site.dtype(x)))
    return site.cast(above, site.dtype(x))


def row_of_numbers(site: Site, numbers: tuple[float, ...]) -> str:
    """Return one number, or one for each column, as a constant."""
    return site.constant(numbers[0] if len(numbers) == 1 else numbers, "float32")


@rule("Scaler", domain=ML)
def scale(site: Site) -> Results:
    x = site.cast(site.input(0), "float32")
    offset, factor = site.attribute("offset", (0.0,)), site.attribute("scale", (1.0,))
    return site.emit("mul", site.emit("sub", x, row_of_numbers(site, offset)), row_of_numbers(site, factor))


@rule("Imputer", domain=ML)
def impute(site: Site) -> Results:
    """Replace missing elements, which are NaN or one number, by a number for each column."""
    x = site.input(0)
    word = "float" if site.is_float(x) else "int64"
    values = site.attribute(f"imputed_value_{word}s", ())
    missing = site.attribute(f"replaced_value_{word}", 0)
    if len(values) not in (1, site.shape(x)[-1]):
        raise GraphError(f"{len(values)} values are neither one nor those of the columns of {list(site.shape(x))}")
    is_missing = (
        site.emit("isnan", x) if np.isnan(missing) else site.emit("equal", x, site.constant(missing, site.dtype(x)))
    )
    return site.emit("where", is_missing, site.constant(values if len(values) > 1 else values[0], site.dtype(x)), x)


@rule("Normalizer", domain=ML)
def normalise(site: Site) -> Results:
    """Divide rows by their norm, if it is not 0. ONNX Runtime's maximum is of the elements, not of their sizes."""
    x, norm = site.cast(site.input(0), "float32"), site.attribute("norm", "MAX")
    reductions = {"MAX": "reduce_max", "L1": "reduce_l1", "L2": "reduce_l2"}
    refuse(norm not in reductions, f"the norm {norm}")
    size = site.emit(reductions[norm], x, axes=(site.rank(x) - 1,), keepdims=True)
    is_zero = site.emit("equal", size, site.constant(0.0, "float32"))
    return site.emit("div", x, site.emit("where", is_zero, site.constant(1.0, "float32"), size))


@rule("LabelEncoder", domain=ML)
def encode_labels(site: Site) -> Results:
    """Replace numbers that are keys by their values, and others by a default. NaN is a key since version 4."""
    x = site.input(0)
    keys, values = numbers_of(site, "keys"), numbers_of(site, "values")
    if not 0 < len(keys) == len(values):
        raise GraphError(f"it has {len(keys)} keys and {len(values)} values")
    last, dtype = site.rank(x), site.dtype(x)
    wide = site.reshape(x, (*site.shape(x), 1))
    equal = site.emit("equal", wide, site.constant(keys, dtype))
    if site.is_float(x) and np.isnan(keys).any() and site.scope.opsets[ML] >= 4:
        is_key = site.emit("logical_and", site.emit("isnan", wide), site.constant(np.isnan(keys)))
        equal = site.emit("logical_or", equal, is_key)
    place = site.emit("argmax", site.cast(equal, "int32"), axis=last, keepdims=False, last=False)
    is_known = site.emit("reduce_any", equal, axes=(last,), keepdims=False)
    value = site.emit("gather", site.constant(values), place, axis=0, indexing=PLAIN)
    return site.emit("where", is_known, value, site.constant(default_of(site, values), site.dtype(value)))


def numbers_of(site: Site, what: str) -> Array:
    """Return keys or values of a label encoder, which are attributes of several types."""
    refuse(site.attribute(f"{what}_strings") is not None, "an encoder of strings")
    attributes = ((f"{what}_tensor", None), (f"{what}_floats", np.float32), (f"{what}_int64s", np.int64))
    for name, dtype in attributes:
        numbers = site.attribute(name)
        if numbers is not None:
            return np.asarray(numbers, dtype)
    return np.zeros(0)


def default_of(site: Site, values: Array) -> Array:
    """Return what other numbers than keys become, of the type of the values."""
    tensor = site.attribute("default_tensor")
    numbers = {"f": site.attribute("default_float", -0.0), "i": site.attribute("default_int64", -1)}
    site.ignore("default_string")
    return np.asarray(numbers[values.dtype.kind] if tensor is None else tensor).reshape(())
