"""Measured programs as data, and how the cost model is judged by them."""

from __future__ import annotations

import dataclasses
import json
import lzma
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import ScheduleError, StoreError
from autosched.lower import lower
from autosched.schedule import Split, initial_state, steps_from_json, steps_to_json
from autosched.store import Database, Finding, TargetRow, WorkloadRow
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from cost_model.cpu.features import ANALYTIC_COLUMN, FEATURES
from experiments import cost_model_quality, programs
from search_spaces import cpu, space

TARGET = parse_target("llvm -mcpu=znver4")
SHAPES = ((1, 32, 48, 24), (1, 40, 40, 40), (2, 64, 16, 16))
ROWS = 60


def test_steps_keep_their_parameters_open_where_these_are_named():
    state = initial_state(collapse(build("gmm", SHAPES[0])[0])).apply(Split("matmul", "i", (4, "b")))
    text = steps_to_json(state, None)
    assert json.loads(text) == [["Split", "matmul", "i", [4, "b"]]]
    assert steps_from_json(text, ["b"]) == state.steps
    with pytest.raises(ScheduleError, match="where int is expected"):
        steps_from_json(text, ["c"])
    with pytest.raises(ScheduleError):
        steps_from_json(text.replace('"matmul"', "4"), ["b"])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up times, twice the draft's or so, of random rows of three matrix products; one failure, one old schedule."""
    path = tmp_path_factory.mktemp("programs") / "records.db"
    rng = np.random.default_rng(0)
    with Database(path) as found:
        for shape in SHAPES:
            dag, spec = build("gmm", shape)
            sketches = cpu.sketches(collapse(dag), TARGET, 1)[:3]
            names = [tuple(p.name for p in s.params) for s in sketches]
            model = CostModel([lower(s.state) for s in sketches], names, TARGET, 1)
            target_json = json.dumps(asdict(TARGET))
            run = found.start_run(
                WorkloadRow(dag.content_hash, "gmm", json.dumps(spec)), TargetRow(TARGET.fingerprint, target_json), 1, 0
            )
            for i, sketch in enumerate(sketches):
                rows = space.sample(sketch, ROWS // len(sketches), rng)
                for row, draft in zip(rows, model.analytic_latency(i, rows), strict=True):
                    values = dict(zip(names[i], row.tolist(), strict=True))
                    seconds = float(draft * 2 ** rng.normal(1.0, 0.2))
                    found.append(run, sketch.name, steps_to_json(sketch.state, values), values, 0, Finding(seconds))
            found.append(run, sketch.name, steps_to_json(sketch.state, values), values, 1, Finding(None, (), "hang"))
            found.append(run, "of long ago", '[["Split","matmul","j",[4]]]', {"x": 4}, 1, Finding(1.0))
    return path


@pytest.fixture(scope="module")
def tasks(database: Path) -> tuple[programs.Measured, ...]:
    return programs.from_databases([database])


def test_a_file_gives_back_what_a_database_held(tasks, tmp_path):
    assert sorted(t.shape for t in tasks) == sorted(SHAPES)
    path = tmp_path / "programs.json.xz"
    programs.write(path, tasks)
    again = programs.read(path)
    assert [(t.spec, t.target, t.threads, len(t)) for t in again] == [
        (t.spec, t.target, t.threads, len(t)) for t in tasks
    ]
    for one, two in zip(tasks, again, strict=True):
        for a, b in zip(one.sketches, two.sketches, strict=True):
            assert (a.sketch, json.loads(a.steps), a.params) == (b.sketch, json.loads(b.steps), b.params)
            assert np.array_equal(a.values, b.values)
            assert np.allclose(a.seconds, b.seconds, rtol=1e-3)


def test_features_are_those_of_the_search(tasks):
    """Of a sketch with open parameters and of a schedule with integers alike, the draft is what the search saw."""
    table = programs.tabulate(tasks)
    assert table.features.shape == (len(table), len(FEATURES))
    assert len(table) == sum(map(len, tasks))
    known = np.isfinite(table.seconds) & (table.sketch != "of long ago")
    error = np.log2(table.seconds[known]) - table.features[known, ANALYTIC_COLUMN]
    assert abs(error.mean() - 1.0) < 0.1
    assert error.std() < 0.3
    assert (table.sketch == "of long ago").sum() == len(SHAPES)
    assert (~np.isfinite(table.seconds)).sum() >= 1


def test_a_task_of_several_databases_is_one(database, tasks):
    twice = programs.from_databases([database, database])
    assert [len(t) for t in twice] == [2 * len(t) for t in tasks]


@pytest.mark.parametrize(
    "content",
    [b"", b"no xz", lzma.compress(b"[]"), lzma.compress(b"{}"), lzma.compress(b'{"schema_version": 99}'),
     lzma.compress(b'{"schema_version": 1, "targets": [], "tasks": [{"spec": {}, "target": 0, "threads": 1}]}')],
)  # fmt: skip
def test_other_files_are_refused_with_a_sentence(content, tmp_path):
    path = tmp_path / "x.json.xz"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.json\.xz"):
        programs.read(path)


def test_quality_counts_within_workloads(tasks):
    table = programs.tabulate(tasks)
    perfect = -np.log(table.seconds)
    found = cost_model_quality.quality(perfect + 100 * table.task, table)
    assert (found.pairwise, found.recall) == (1.0, 1.0)
    assert cost_model_quality.quality(-perfect, table).pairwise == 0.0


def test_close_pairs_are_counted_apart():
    seconds = np.array([1.0, 1.05, 1.5, np.inf] * 10)  # of each task 10 of a kind
    table = programs.Table(np.zeros((40, 1), np.float32), seconds, np.zeros(40, np.int64), (), np.full(40, "s"))
    wrong_where_close = -np.array([1.05, 1.0, 1.5, 9.0] * 10)
    found = cost_model_quality.quality(wrong_where_close, table, least=30)
    assert (found.pairwise, found.apart) == (pytest.approx(2 / 3), 1.0)
    close = 3 * 10 * 9 / 2 + 10 * 10  # of a kind with itself, and of the first with the second
    assert cost_model_quality.close_pairs(table, least=30) == pytest.approx(close / (30 * 29 / 2))


def test_times_of_one_program_share_a_fold_and_judge_each_other(database):
    table = programs.tabulate(programs.from_databases([database, database]))
    program, fold = cost_model_quality.identities(table), cost_model_quality.random_folds(table)
    assert len(set(zip(program.tolist(), fold.tolist(), strict=True))) == len(set(program.tolist())) <= len(table) // 2
    found = cost_model_quality.repeated(table)
    assert found.pairwise == pytest.approx(1.0, abs=0.03)
    assert cost_model_quality.repeated(programs.tabulate(programs.from_databases([database])[:0])).pairwise != 1.0


def test_a_program_is_never_scored_by_a_model_that_has_seen_it(tasks, monkeypatch):
    table = programs.tabulate(tasks)
    seen: list[np.ndarray] = []

    def fitted(table: programs.Table, rows: np.ndarray) -> cost_model_quality.Ranker:
        seen.append(rows)
        return cost_model_quality.Ranker()

    monkeypatch.setattr(cost_model_quality, "fitted", fitted)
    for folds in cost_model_quality.FOLDS.values():
        seen.clear()
        fold = folds(table)
        cost_model_quality.out_of_fold(table, fold)
        for f, rows in zip(np.unique(fold), seen, strict=len(np.unique(fold)) > 1):
            assert not (rows & (fold == f)).any()
    shapes = cost_model_quality.shape_folds(table)
    assert all(len(set(shapes[table.task == t])) == 1 for t in range(len(tasks)))


def test_the_report_has_what_is_promised(database, capsys):
    assert cost_model_quality.main(["--db", str(database), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for key in ("pairwise_accuracy", "recall_at_30", "loo_pairwise_accuracy", "loo_recall_at_30"):
        assert 0.5 < found[key] <= 1.0
    assert found["failed"] == len(SHAPES)
    assert found["programs"] + found["failed"] == sum(map(len, programs.from_databases([database])))
    assert found["pairwise_accuracy"] > found["chance_pairwise_accuracy"]
    assert found["apart_accuracy"] > found["pairwise_accuracy"]
    assert 0.0 < found["close_pairs"] < 1.0


def test_the_committed_programs_can_be_read_and_lowered():
    tasks = programs.read(programs.COMMITTED)
    assert sum(map(len, tasks)) > 3000
    assert {t.family for t in tasks} >= {"c1d", "c2d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr"}
    assert programs.COMMITTED.stat().st_size < 2_000_000
    some = [dataclasses.replace(t, sketches=t.sketches[:2]) for t in tasks[:: len(tasks) // 8]]
    assert len(programs.tabulate(some)) == sum(map(len, some))
