from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autosched.errors import UsageError
from autosched.te.operators.registry import build
from autosched.tuner import memory_check
from autosched.tuner.memory_check import check_memory_and_disk, size_text


def test_what_fits_passes_and_what_does_not_is_refused_with_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, _ = build("relu", (1000, 1000))  # 4 MB in, 4 MB out
    check_memory_and_disk(dag, tmp_path)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 10_000_000)
    with pytest.raises(UsageError, match=r"\(4.0 MB\) and outputs \(4.0 MB\) need .* MB of memory.* 10.0 MB are free"):
        check_memory_and_disk(dag, tmp_path)


def test_files_need_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    dag, _ = build("relu", (1000, 1000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(UsageError, match=f"of disk space .* 1.0 kB are free: make room in {tmp_path}"):
        check_memory_and_disk(dag, tmp_path)


def testfree_memory_respects_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_check.free_memory()
    assert whole > 0
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory_check, "_CGROUP_LIMIT", limit)
    limit.write_text("4096\n")
    assert memory_check.free_memory() == 4096
    limit.write_text("max\n")
    assert memory_check.free_memory() > 4096


@pytest.mark.parametrize(
    ("n", "text"), [(7, "7 bytes"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (10**12, "1000.0 GB")]
)
def test_sizes(n: int, text: str) -> None:
    assert size_text(n) == text
