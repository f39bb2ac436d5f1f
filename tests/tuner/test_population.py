from __future__ import annotations

import numpy as np

from autosched.tuner.population import Pool, SketchRows, choose, cumulative_count
from search_spaces import space


def pool(*parts: tuple[list[list[int]], list[float]]) -> Pool:
    made = []
    for rows, score in parts:
        matrix = np.array(rows, dtype=np.int64)
        made.append(SketchRows(matrix, space.keys(matrix), np.array(score)))
    return Pool(tuple(made))


NONE_TAKEN = np.zeros(2, dtype=np.intp)


def test_cumulative_count() -> None:
    assert cumulative_count(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]
    assert cumulative_count(np.array([], dtype=np.int64)).tolist() == []


def test_top_takes_the_best_overall_and_some_of_each_sketch() -> None:
    both = pool(([[1], [2], [3]], [1.0, 5.0, 4.0]), ([[7, 7], [8, 8]], [0.1, 0.2]))
    top = both.top(2, each=1)
    assert [p.rows.tolist() for p in top.parts] == [[[2], [3]], [[8, 8]]]
    assert len(both) == 5
    assert len(top) == 3


def test_merge_keeps_distinct_rows_and_without_drops_seen_ones() -> None:
    merged = pool(([[1], [2]], [1.0, 2.0])).merge(pool(([[2], [3]], [9.0, 3.0])))
    assert merged.parts[0].rows.tolist() == [[1], [2], [3]]
    assert merged.parts[0].score.tolist() == [1.0, 2.0, 3.0]
    left = merged.without([space.keys(np.array([[1], [3]]))])
    assert left.parts[0].rows.tolist() == [[2]]


def test_choose_spreads_over_sketches_and_buckets() -> None:
    # 8..15 are one bucket: only one of them is taken while there are others
    both = pool(([[8], [9], [10], [16]], [1.0, 0.99, 0.98, 0.5]), ([[1, 1]], [0.6]))
    spread = choose(both, 3, penalty=0.2, crowd=1, taken=NONE_TAKEN)
    assert [(c.sketch, c.values) for c in spread] == [(0, (8,)), (1, (1, 1)), (0, (16,))]
    greedy = choose(both, 3, penalty=0.0, crowd=3, taken=NONE_TAKEN)
    assert [(c.sketch, c.values) for c in greedy] == [(0, (8,)), (0, (9,)), (0, (10,))]
    filled = choose(both, 5, penalty=0.2, crowd=1, taken=NONE_TAKEN)
    assert len(set(filled)) == 5


def test_choose_counts_what_a_sketch_already_had() -> None:
    both = pool(([[8]], [1.0]), ([[1, 1]], [0.8]))
    assert choose(both, 1, 0.3, 1, NONE_TAKEN)[0].sketch == 0
    assert choose(both, 1, 0.3, 1, np.array([1, 0]))[0].sketch == 1


def test_choose_of_nothing_is_nothing() -> None:
    empty = Pool((SketchRows(np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.uint64), np.empty(0)),))
    assert choose(empty, 4, 0.1, 1, np.zeros(1, dtype=np.intp)) == ()
