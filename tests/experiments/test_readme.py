"""The README: its commands are accepted, its names exist, its example runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from autosched.cli.main import VERBS, build_parser
from tests.helpers import python

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
MARK = "<!-- run by .ci/run -->\n```\n"
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines() if line.strip()]
OURS = [part.strip() for line in COMMANDS for part in line.split("&&") if part.strip().startswith("autosched ")]


def test_two_commands_are_marked_and_come_first():
    assert TEXT.count(MARK) == 2
    assert [line.split()[0] for line in COMMANDS[:2]] == ["pip", "python"]
    assert all(MARK + line + "\n" in TEXT for line in COMMANDS[:2])


@pytest.mark.parametrize("line", OURS)
def test_commands_are_accepted(line):
    words = shlex.split(line)
    assert build_parser().parse_args(words[1:]).verb == words[1]


@pytest.mark.parametrize("module", [m for line in COMMANDS for m in re.findall(r"python -m (experiments\.\w+)", line)])
def test_experiments_exist(module):
    place = ROOT / module.replace(".", "/")
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def test_every_verb_is_in_the_table():
    missing = [verb for verb in VERBS if f"| `autosched {verb}" not in TEXT]
    assert not missing


def test_every_place_on_the_map_exists():
    places = re.findall(r"`((?:autosched|search_spaces|cost_model|experiments|tests)/[\w/.]*)`", TEXT)
    assert len(places) > 12
    assert not [place for place in places if not (ROOT / place).exists()]


def test_the_example_runs(tmp_path):
    (example,) = [block for kind, block in BLOCKS if kind == "python" and "trials=64" in block]
    assert "import autosched" in example
    file = tmp_path / "example.py"
    file.write_text(example.replace("trials=64", "trials=2"), encoding="utf-8")
    done = python(file, XDG_DATA_HOME=str(tmp_path / "data"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"[\d.]+ us, \d+ GFLOP/s, record \d+", done.stdout)
