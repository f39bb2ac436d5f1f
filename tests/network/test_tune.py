"""Tuning networks: who has a turn, what comes of failures and of Ctrl-C, and that what is found is used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autosched
from autosched.errors import DeviceError, UsageError
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.measure.measurer import Measurer
from autosched.network import contest as whole_calls
from autosched.network.contest import contest
from autosched.network.model import Model
from autosched.network.network_search import NetworkSearch
from autosched.network.profile import NetworkTimes
from autosched.network.task_search import Begun, TaskSearch
from autosched.network.tune import tune_network
from autosched.network.tuned import NetworkEvent
from autosched.tuner.progress import Stopwatch
from autosched.tuner.session import Settings, begin
from tests.graph import networks
from tests.tuner.fakes import Clock, FakeMeasurer, FakeRecorder, make_task


def small() -> Graph:
    """Two convolutions and a linear map."""
    b = networks.Builder(x=(1, 3, 7, 5))
    same = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
    inner = b.add("relu", b.add("conv", "x", b.constant(5, 3, 3, 3), None, **same))
    outer = b.add("conv", inner, b.constant(2, 5, 3, 3), b.constant(2), **same)
    return b.graph(b.add("linear", b.add("reshape", outer, shape=(1, 70)), b.constant(11, 70), None))


@dataclass
class Watch:
    turns: list[NetworkEvent] = field(default_factory=list)
    ends: list[NetworkEvent] = field(default_factory=list)

    def on_turn(self, event: NetworkEvent) -> None:
        self.turns.append(event)

    def on_end(self, event: NetworkEvent) -> None:
        self.ends.append(event)


class Fakes:
    """Searches whose sessions talk to stand-ins; `measurer[n]` says how task n measures."""

    def __init__(self, n: int, bound_s: float = 1e-5, **measurers: dict[str, Any]) -> None:
        self.clock = Clock()
        self.stopwatch = Stopwatch(self.clock, 100.0, None)
        self.recorders = [FakeRecorder() for _ in range(n)]
        self.measurers = [FakeMeasurer(self.clock, **measurers.get(f"task{k}", {})) for k in range(n)]
        self.searches = [TaskSearch(self.task(k), bound_s, 1.0, self.begin, self.stopwatch) for k in range(n)]

    @staticmethod
    def task(n: int) -> Any:
        recipe = SimpleNamespace(spec=f"spec {n}", steps="")
        return SimpleNamespace(name=f"task {n}", count=n + 1, recipe=recipe, number=n)

    def begin(self, task: Any) -> Begun:
        recorder, measurer = self.recorders[task.number], self.measurers[task.number]
        session = begin(make_task(), Settings(64), measurer, recorder, self.stopwatch)
        return Begun(session, lambda candidate: f"steps of {candidate.values}")

    def run(self, trials: int | None = None, watch: Watch | None = None) -> NetworkSearch:
        search = NetworkSearch(self.searches, self.stopwatch, trials, () if watch is None else (watch,))
        search.run()
        return search


def test_tasks_take_turns_until_the_trials_are_used() -> None:
    fakes, watch = Fakes(3), Watch()
    search = fakes.run(40, watch)
    assert (search.n_measured, search.interrupted) == (40, False)
    assert [event.turn for event in watch.turns[:3]] == [2, 1, 0]  # called 3, 2 and 1 times
    assert [m.batches[0] for m in fakes.measurers] == [4, 4, 4]
    assert sum(sum(m.batches) for m in fakes.measurers) == 40
    assert watch.turns[2].kernels_s is None
    assert [event.trials for event in watch.ends] == [40]
    last = watch.ends[0]
    assert last.kernels_s is not None
    assert last.kernels_s == pytest.approx(sum(t.count * (t.best_s or 0.0) for t in last.tasks))
    assert sum(task.share for task in last.tasks) == pytest.approx(1.0)
    curve = [point.kernels_s for point in search.curve]
    assert curve == sorted(curve, reverse=True)
    for recorder in fakes.recorders:
        assert (recorder.status, bool(recorder.certified)) == ("finished", True)


def test_it_ends_by_itself_when_nothing_is_gained() -> None:
    fakes = Fakes(2)
    search = fakes.run()
    assert 8 < search.n_measured < 400
    assert Fakes(2, bound_s=0.9).run().n_measured == 8  # whatever is measured is below the roof
    assert Fakes(2, bound_s=1.0).run().n_measured == 0  # what the network has is at the roof


def test_a_failing_task_keeps_its_schedule() -> None:
    fakes = Fakes(3, task1={"fails": lambda i, values: "wrong_result"})

    def refuse(task: Any) -> Begun:
        raise UsageError("there is no room")

    fakes.searches[0].begin = refuse
    search = fakes.run(60)
    first, second, third = search.searches
    assert (first.error, first.best_steps, first.n_measured) == ("there is no room", None, 0)
    assert (second.best_steps, len(second.rounds)) == (None, 2)
    assert third.best_steps is not None
    assert [r.status for r in fakes.recorders] == ["running", "failed", "finished"]


def test_ctrl_c_ends_the_search_with_what_it_has() -> None:
    fakes, watch = Fakes(2, task0={"interrupt_after": 2}), Watch()
    search = fakes.run(40, watch)
    assert (search.interrupted, search.n_measured, watch.ends) == (True, 6, [])
    assert search.searches[0].best_steps is not None
    assert [r.status for r in fakes.recorders] == ["interrupted", "interrupted"]
    assert [r.certified for r in fakes.recorders] == [{}, {}]


def test_a_lost_device_ends_it() -> None:
    fakes = Fakes(3)

    def lose(task: Any) -> Begun:
        raise DeviceError("it is gone")

    fakes.searches[1].begin = lose  # one alone may have data that do not fit
    assert fakes.run(20).searches[1].error == "it is gone"
    fakes = Fakes(3)
    fakes.searches[0].begin = fakes.searches[1].begin = lose
    with pytest.raises(DeviceError, match="it is gone"):
        fakes.run(40)
    assert fakes.recorders[2].status == "finished"


def test_a_bug_costs_its_task_only() -> None:
    fakes = Fakes(2)

    def fail(task: Any) -> Begun:
        raise AssertionError("a rule is wrong")

    fakes.searches[0].begin = fail
    search = fakes.run(20)
    assert [s.error for s in search.searches] == ["AssertionError: a rule is wrong", None]
    assert search.searches[1].n_measured >= 4


def test_the_time_left_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    Fakes(2).run(20, watch)
    times = [event.eta_s for event in watch.turns]
    assert times[0] is None
    assert watch.ends[0].eta_s == 0.0
    assert all(isinstance(time, float) for time in times[1:])


def test_a_better_record_is_kept() -> None:
    fakes = Fakes(1)
    fakes.searches[0].task.recipe.steps = "from records"
    fakes.recorders[0].known_s = 1e-9
    assert fakes.run(8).searches[0].best_steps is None
    fakes.recorders[0].known_s = 1.0
    assert fakes.searches[0].best_steps is not None


# Whole calls


@pytest.mark.parametrize(
    ("times", "losing", "kept"),
    [
        ({"": 9.0, "abc": 5.0}, "", "abc"),
        ({"": 9.0, "abc": 5.0, "c": 3.0}, "ab", "c"),
        ({"": 9.0, "abc": 5.0, "ac": 5.0}, "bd", "abc"),
        ({"": 4.0, "abc": 5.0}, "abc", ""),
        ({"": 4.0, "abc": 5.0, "ab": 4.5}, "c", ""),
    ],
)
def test_schedules_that_do_not_help_the_network_are_left_out(
    times: dict[str, float], losing: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def side_by_side(models: Sequence[Any], inputs: object) -> list[tuple[float, ...]]:
        return [(times[model],) * 3 for model in models]

    monkeypatch.setattr(whole_calls, "side_by_side", side_by_side)
    monkeypatch.setattr(whole_calls, "losing_tasks", lambda *given: set(losing))
    start: Any = ""
    build: Any = "".join
    outcome = contest(start, dict.fromkeys("abc", "steps"), build, {}, lambda: True)
    assert outcome.model == kept
    assert outcome.before == (times[""],) * 3
    assert outcome.after == (times[kept],) * 3
    at_once = contest(start, dict.fromkeys("abc", "steps"), build, {}, lambda: False)
    assert at_once.model == ("abc" if times["abc"] < times[""] else "")


def test_kernels_that_lose_in_the_network_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (autosched.load(networks.perceptron(), threads=1, records=False) for _ in range(2))
    numbers = iter(range(100))

    def profile(model: Model, inputs: object, budget_s: float) -> NetworkTimes:
        disturbed = 5.0 if next(numbers) < 2 else 1.0
        slow = before.tasks[1].steps if model is after else ()
        return NetworkTimes({n: disturbed * (1.5 if n in slow else 1.0) for n in range(9)}, 1.0)

    monkeypatch.setattr(whole_calls, "profile", profile)
    assert whole_calls.losing_tasks(before, after, {}) == {before.tasks[1].recipe.spec}


# With workers


def test_a_network_is_tuned_and_what_was_found_is_loaded(tmp_path: Path) -> None:
    graph, path, watch = small(), tmp_path / "records.db", Watch()
    model = autosched.load(graph, threads=1, db=path)
    result = tune_network(model, trials=7, db=path, callbacks=(watch,))
    assert (result.trials, result.failed, result.interrupted, result.verified) == (7, 0, False, True)
    assert [task.count for task in result.tasks] == [1, 1, 1]
    assert sum(task.trials for task in result.tasks) == 7
    assert result.max_error < 1e-5
    given = np.random.default_rng(1).normal(size=(1, 3, 7, 5)).astype("float32")
    wanted = interpret(graph, {"x": given})[graph.outputs[0]]
    np.testing.assert_allclose(result.model(given), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    again = autosched.load(graph, threads=1, db=path)
    assert [bool(task.recipe.steps) for task in again.tasks] == [task.trials > 0 for task in result.tasks]
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    keys = (
        "schema_version model inputs outputs target threads trials failed wall_s first_result_s start_latency_s "
        "latency_s latency_ci_s kernels_s arena_bytes tasks verified max_error"
    )
    assert set(keys.split()) <= set(data)
    task_keys = {"name", "count", "share", "best_s", "trials", "fraction_of_roofline"}
    assert all(task_keys <= set(task) for task in data["tasks"])


def test_ctrl_c_gives_the_best_network_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, path, contests = networks.perceptron((3, 17)), tmp_path / "records.db", list[int]()
    measure, side_by_side = Measurer.measure, whole_calls.side_by_side

    def twice(*given: Any) -> Any:
        contests.append(len(contests))
        if contests == [0]:
            raise KeyboardInterrupt
        return side_by_side(*given)

    def interrupted(self: Measurer, *given: Any) -> Any:
        yield from itertools.islice(measure(self, *given), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurer, "measure", interrupted)
    monkeypatch.setattr(whole_calls, "side_by_side", twice)
    result = tune_network(autosched.load(graph, threads=1, db=path), db=path)
    assert (result.trials, result.interrupted) == (2, True)
    assert result.model(np.zeros((2, 3), "float32")).shape == (2, 17)
    again = autosched.load(graph, threads=1, db=path)
    assert [bool(task.recipe.steps) for task in again.tasks] == [True]


def test_numbers_that_make_no_sense(tmp_path: Path) -> None:
    model = autosched.load(networks.perceptron((3, 5)), threads=1, records=False)
    with pytest.raises(UsageError, match="trials must be a whole number"):
        tune_network(model, trials=0, db=tmp_path / "records.db")
    with pytest.raises(UsageError, match="budget_s must be"):
        tune_network(model, budget_s=-1.0, db=tmp_path / "records.db")
    assert not list(tmp_path.iterdir())
