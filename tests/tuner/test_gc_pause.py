from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from autosched.tuner.gc_pause import YOUNG, pause_gc


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_collections_are_rare_inside_and_as_before_afterwards() -> None:
    gc.set_threshold(500, 7, 9)

    def fail() -> None:
        with pause_gc():
            assert gc.get_threshold() == (YOUNG, 7, 9)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.get_threshold() == (500, 7, 9)


def test_what_is_rarer_or_switched_off_stays_so() -> None:
    for first in (0, 2 * YOUNG):
        gc.set_threshold(first, 7, 9)
        with pause_gc():
            assert gc.get_threshold() == (first, 7, 9)
