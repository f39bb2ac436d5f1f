"""A sample of the long fault runs, and that their bounds can be broken."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults import ends
from tests.faults.place import Place, check_records, rows
from tests.store.tasks import add, start


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.make(tmp_path / "place")


@pytest.mark.parametrize(("family", "n"), [(ends.kills, 1), (ends.groups, 1), (ends.signals, 1)])
def test_sample(place: Place, family: ends.Family, n: int) -> None:
    tally = family(place, n, random.Random(3))
    assert (tally.cases, tally.broken) == (n, [])


def test_a_lost_row_and_a_damaged_one_break_the_bounds(tmp_path: Path) -> None:
    from autosched.store import Database

    path = tmp_path / "records.db"
    with Database(path) as database:
        run = start(database)
        for n in range(3):
            add(database, run, n)
    promised = rows(path)
    assert promised.total() == 3
    assert check_records(path, promised) == []
    (lost,) = check_records(path, promised + Counter([("sketch0", 0.125)]))
    assert "1 acknowledged rows are lost" in lost
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE measurements SET samples = '[1.0]' WHERE id = 1")
    (damaged,) = check_records(path, promised)
    assert "n_damaged=1" in damaged


def test_processes_and_files_that_are_left_are_seen(place: Place) -> None:
    child = place.start("http.server", "0", "--bind", "127.0.0.1")
    (place.directory / "tmp" / "forgotten").write_text("")
    (orphan,) = place.orphans()
    assert "http.server" in orphan
    child.wait()
    assert len(place.litter()) == 1
    assert place.litter() == []
