"""A ranker that starts from what another one has learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_model import prior
from cost_model.features import DRAFT_COLUMN, FEATURES
from cost_model.model import CostModel
from cost_model.ranker import Ranker, labels
from tests.cost_model import nests

COLUMN = 3  # what the times depend on beside the draft


def measured(n: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(features, seconds): a workload where the draft is wrong by a factor of four where a feature is above 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, len(FEATURES))).astype(np.float32)
    return x, 2.0 ** (x[:, DRAFT_COLUMN] + 2.0 * (x[:, COLUMN] > 0) + shift).astype(np.float64)


def fitted(x: np.ndarray, seconds: np.ndarray, start: bytes | None = None) -> Ranker:
    ranker, group = Ranker(prior=start), np.zeros(len(x), np.int64)
    ranker.fit(x, labels(seconds, group), group)
    return ranker


def order_is_right(ranker: Ranker, x: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.corrcoef(ranker.predict(x), -np.log2(seconds))[0, 1])


@pytest.fixture(scope="module")
def forest() -> bytes:
    return fitted(*measured(400, seed=0)).save()


def test_knowledge_carries_over_and_what_is_new_is_learned_on_top(forest):
    x, seconds = measured(200, seed=1)
    known = Ranker(prior=forest)
    assert known.fitted
    assert order_is_right(known, x, seconds) > 0.95 > order_is_right(Ranker(), x, seconds)
    opposite = 2.0 ** (2 * x[:, DRAFT_COLUMN].astype(np.float64)) / seconds  # where the forest is wrong
    learned = fitted(x, opposite, forest)
    assert order_is_right(known, x, opposite) < 0.6
    assert order_is_right(learned, x, opposite) > 0.9


def test_a_constant_of_the_workload_is_not_learned(forest):
    x, seconds = measured(100, seed=2, shift=5.0)
    before, after = Ranker(prior=forest).predict(x), fitted(x, seconds, forest).predict(x)
    assert abs(float((after - before).mean())) < 0.3


def test_the_same_records_and_forest_give_the_same_scores(forest):
    x, seconds = measured(60, seed=3)
    one, two = (fitted(x, seconds, forest).predict(x) for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, fitted(x, seconds).predict(x))


def test_a_cost_model_starts_from_it_and_a_few_rows_do_not_forget_it(forest):
    func, params = nests.matmul(256, 256, 256), tuple(nests.MATMUL_PARAMS)
    plain, known = (CostModel([func], [params], nests.TARGET, 1, prior=p) for p in (None, forest))
    rows = np.array([[8, 12, 4, 32, 256], [1, 1, 1, 16, 16], [4, 6, 2, 32, 64]])
    assert np.array_equal(plain.score(0, rows), -np.log2(plain.draft(0, rows)))
    assert np.array_equal(known.score(0, rows), known.ranker.predict(known.features(0, rows)).astype(np.float64))


def test_another_table_of_features_has_another_file():
    other = (replace(FEATURES[0], formula="something else"), *FEATURES[1:])
    assert prior.path(other) != prior.path()
    assert not prior.path(other).exists()
