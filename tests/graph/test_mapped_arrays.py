"""Arrays that are mapped from files: one mapping for all of a file, changed files, and the release of pages."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.mapped_arrays import GraphConstants, check_mapped, map_bytes, mapped_range
from tests.helpers import resident_bytes

BYTES = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)


def file_in(folder: Path) -> Path:
    path = folder / "weights.bin"
    path.write_bytes(BYTES.tobytes())
    return path


def test_a_file_is_mapped_once_for_all_arrays(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    n_open = len(os.listdir("/proc/self/fd"))
    arrays = [map_bytes(path, n, 100) for n in range(500)]
    assert len(os.listdir("/proc/self/fd")) <= n_open + 1
    for n, array in enumerate(arrays):
        np.testing.assert_array_equal(array, BYTES[n : n + 100])
        assert mapped_range(array[3:]) == (path, n + 3)
    with pytest.raises(ValueError, match="none from"):
        map_bytes(path, BYTES.nbytes - 3, 4)


def test_constants_that_were_copied_leave_no_pages(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    half = BYTES.nbytes // 2
    whole = {"a": map_bytes(path, 0, half), "b": map_bytes(path, half + 1, half - 4).view(np.float32)}
    np.testing.assert_array_equal(whole["a"], BYTES[:half])
    assert resident_bytes(path) >= half
    copied = np.zeros(half, np.uint8)
    with GraphConstants(whole) as constants:
        constants.copy("a", copied)
        (b,) = constants.arrays(["b"])
        assert b.flags.aligned
        assert not whole["b"].flags.aligned
    assert resident_bytes(path) == 0
    np.testing.assert_array_equal(copied, BYTES[:half])
    np.testing.assert_array_equal(b.view(np.uint8), BYTES[half + 1 : -3])


def test_a_file_that_was_written_since_is_refused(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    constants = {"w": map_bytes(path, 8, 8)}
    check_mapped(constants)
    with path.open("r+b") as file:
        file.write(b"12345678")
    os.utime(path, ns=(0, 1))  # a clock may be too coarse to tell
    with pytest.raises(GraphError, match=r"weights\.bin has changed since the constant w was mapped from it"):
        check_mapped(constants)
    check_mapped({"w": map_bytes(path, 8, 8)})


def test_another_file_of_the_same_path_is_no_change(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    constants = {"w": map_bytes(path, 8, 8)}
    (tmp_path / "new").write_bytes(b"0" * BYTES.nbytes)
    (tmp_path / "new").replace(path)
    check_mapped(constants)
    np.testing.assert_array_equal(constants["w"], BYTES[8:16])
    assert map_bytes(path, 8, 8).tobytes() == b"0" * 8
    path.unlink()
    check_mapped(constants)
    np.testing.assert_array_equal(constants["w"], BYTES[8:16])
