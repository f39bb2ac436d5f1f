"""A sample of all command lines, and those that were faults once; all of them are a command of its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from autosched.cli.main import VERBS
from tests.cli.command_lines import (
    FLAGS,
    VALUES,
    CommandLine,
    check,
    command_lines,
    make_subjects,
    options_of,
    short_measurements,
)

SAMPLE, SEED = 60, 3
# What takes a second or more: a torch module is exported, something is tuned or timed, a model is measured.
LONG = ("network", ".pt2", "tune", "bench", "doctor", "explain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    made = tmp_path_factory.mktemp("subjects")
    make_subjects(made, with_torch=False)
    return made


def test_every_option_has_a_row():
    for verb in VERBS:
        for name, action in options_of(verb).items():
            assert name in (FLAGS if action.nargs == 0 else VALUES), f"{verb} {name}"


def test_a_sample_of_command_lines(folder, monkeypatch):
    monkeypatch.delenv("AUTOSCHED_DEBUG", raising=False)
    lines = [line for verb in VERBS for line in command_lines(verb)]
    quick = [line for line in lines if not any(word in str(line) for word in LONG)]
    chosen = random.Random(SEED).sample(quick, SAMPLE)
    with short_measurements():
        assert check(chosen, folder) == []


FAULTS = (
    "bench {d}/net.asc --db {d}/records.db --threads 1 --json",
    "run {d}/net.onnx --inputs {d}/in.npz --outputs '' --json",
    "run {d}/net.onnx --inputs {d}/in.npz --outputs / --json",
)


@pytest.mark.parametrize("words", FAULTS)
def test_what_was_an_internal_error(folder, monkeypatch, words):
    monkeypatch.delenv("AUTOSCHED_DEBUG", raising=False)
    given = tuple(word.strip("'") for word in words.split())
    with short_measurements():
        assert check([CommandLine(given, given[0])], folder) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("tune gmm --budget -1s", "--budget: a time is written 60s, 2m or 1h and is above 0, got '-1s'"),
        (
            "tune gmm --shape -1,2,3,4",
            "--shape: a shape is whole numbers with commas, as in 1,56,56,64, got '-1,2,3,4'",
        ),
        ("tune gmm --trials -5", "--trials: a whole number of at least 1 is needed, got '-5'"),
        ("tune gmm --budget -.5", "a time is written 60s"),
        ("show 1 --threads -1", "--threads: a whole number of at least 1 is needed, got '-1'"),
        ("run net.onnx --inputs ''", "--inputs: a path is needed, got ''"),
        ("best --db ''", "--db: a path is needed, got ''"),
    ],
)
def test_a_negative_or_empty_value_is_told_by_its_rule(cli: Any, words, reason):
    answer = cli(*(word.strip("'") for word in words.split()))
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert reason in answer.err
