"""What an installation gets: the packages, and nothing else of the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("autosched", "search_spaces", "cost_model")


def test_the_wheel_holds_the_packages_with_all_their_files() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    held = {Path(file.distribution_path) for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    files = (p.relative_to(ROOT) for package in PACKAGES for p in (ROOT / package).rglob("*") if p.is_file())
    assert held == {p for p in files if "__pycache__" not in p.parts}


def test_the_sdist_holds_what_the_tests_read() -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist")
    held = {Path(file.distribution_path) for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    for folder in (*PACKAGES, "experiments", "tests", ".github", ".ci"):
        files = {
            p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts
        }
        assert files
        assert files <= held, folder
