from pathlib import Path
from typing import Any

import pytest

from autosched.runtime import peak


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "measure_fma_gflops", lambda target, threads: 100.0 * threads)
    monkeypatch.setattr(peak, "measure_bandwidth", lambda target, threads, nbytes: 1e10)
    monkeypatch.setattr(peak, "fork_join_seconds", lambda threads, target: 1e-6)


def test_doctor_tells_rates_versions_and_the_database(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "records.db"
    answer = cli("doctor", "--threads", "2", "--db", path, "--json")
    assert answer.code == 0
    facts = answer.json
    assert facts["ok"]
    assert (facts["fma_gflops_1"], facts["fma_gflops_2"]) == (100.0, 200.0)
    assert facts["memory_gbytes_per_s_1"] == 10.0
    assert facts["fork_join_s"] == 1e-6
    assert facts["timer_noise"] >= 0.0
    assert facts["numpy"]
    assert facts["database"] == str(path)
    assert not path.parent.exists()


def test_doctor_shows_what_must_be_mended(cli: Any, tmp_path: Path) -> None:
    answer = cli("doctor", "--threads", "1", "--db", tmp_path)
    assert answer.code == 2
    assert "! database" in answer.out
    assert "is a directory" in answer.out
    assert answer.err.startswith("autosched: error: something must be mended: database: not usable (")
    assert answer.err.count("\n") == 1
    answer = cli("doctor", "--threads", "1", "--db", tmp_path, "--json")
    assert (answer.code, answer.json["ok"], answer.err.count("\n")) == (2, False, 1)


def test_doctor_counts_records(cli: Any, db: Path) -> None:
    assert f"{db}, 6 records" in cli("doctor", "--threads", "1", "--db", db).out
