"""What the rankers of several tasks learn from."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model import experience
from cost_model.experience import Experience


def rows(*values: float) -> list[experience.Row]:
    return [np.full(3, value, np.float32) for value in values]


def test_a_task_knows_its_own_and_the_newest_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "OTHERS", 2)
    shared = Experience()
    first, second = shared.new_task(), shared.new_task()
    shared.add(first, rows(1, 2, 3), [0.1, np.inf, 0.3])
    shared.add(second, rows(4), [np.inf])
    shared.add(first, rows(5), [0.5])
    assert (shared.count(first), shared.count(second)) == (4, 1)
    assert (shared.has_time(first), shared.has_time(second)) == (True, False)
    features, seconds, tasks = shared.known_to(second)
    assert features[:, 0].tolist() == [3, 4, 5]
    assert seconds.tolist() == [0.3, np.inf, 0.5]
    assert tasks.tolist() == [first, second, first]
    assert shared.known_to(first)[0][:, 0].tolist() == [1, 2, 3, 4, 5]
