"""Parts of an array on all processors."""

from __future__ import annotations

import pytest

from autosched.te.reference.parallel import for_each


def test_every_part_once():
    seen: list[int] = []
    for_each(seen.append, range(1000))
    assert sorted(seen) == list(range(1000))
    for_each(seen.append, [])
    assert len(seen) == 1000


def test_what_a_part_raises_is_raised_and_ends_the_rest():
    seen: list[int] = []

    def work(part: int) -> None:
        if part == 3:
            raise ValueError("the third")
        seen.append(part)

    with pytest.raises(ValueError, match="the third"):
        for_each(work, range(100_000))
    assert len(seen) < 100_000 - 1
