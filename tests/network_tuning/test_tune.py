"""Tuning networks: who has a turn, what comes of failures and of Ctrl-C, and that what is found is used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import autosched
from autosched.errors import DeviceError, UsageError
from autosched.executor.model import Model
from autosched.executor.profile import NetworkProfile
from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.measure.measurer import Measurer
from autosched.network_tuning import end_to_end as whole_calls
from autosched.network_tuning.budget import FinalisationTime
from autosched.network_tuning.end_to_end import choose_schedules, fastest_in_network
from autosched.network_tuning.objectives import Objective, parse_objective
from autosched.network_tuning.results import Effort, NetworkEvent
from autosched.network_tuning.search import NetworkSearch
from autosched.network_tuning.task_state import TuningRound
from autosched.network_tuning.task_tuner import RecordedRound, TaskSession, TaskTuner
from autosched.network_tuning.tune import tune_network
from autosched.tuner.progress import Stopwatch
from autosched.tuner.protocols import Trial
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


@dataclass
class LoggingRecorder(FakeRecorder):
    number: int = 0
    log: list[tuple[int, Trial]] = field(default_factory=list)

    def append(self, trial: Trial) -> int:
        super().append(trial)
        self.log.append((self.number, trial))
        return len(self.log)


class Fakes:
    """Searches whose sessions talk to stand-ins; `measurer[n]` says how task n measures. `counts[n]`: calls of task n
    in each network."""

    def __init__(
        self, n: int, bound_s: float = 1e-5, counts: Sequence[tuple[int, ...]] = (), **measurers: dict[str, Any]
    ) -> None:
        self.clock = Clock()
        self.stopwatch = Stopwatch(self.clock, 100.0, None)
        self.counts = counts or [(k + 1,) for k in range(n)]
        self.log: list[tuple[int, Trial]] = []  # tasks with their trials, in order
        self.recorders = [LoggingRecorder(number=k, log=self.log) for k in range(n)]
        self.measurers = [FakeMeasurer(self.clock, **measurers.get(f"task{k}", {})) for k in range(n)]
        self.tuners = [TaskTuner(self.task(k), bound_s, 1.0, self.start_session, self.stopwatch) for k in range(n)]

    def task(self, n: int) -> Any:
        return SimpleNamespace(
            name=f"task {n}", counts=self.counts[n], has_schedule=False, similarity_key=f"kind {n}", flops=0, number=n
        )

    def start_session(self, task: Any) -> TaskSession:
        recorder, measurer = self.recorders[task.number], self.measurers[task.number]
        session = begin(make_task(), Settings(64), measurer, recorder, self.stopwatch)
        return TaskSession(session, lambda candidate: f"steps of {candidate.values}")

    def resumed(self) -> Fakes:
        """The same tasks once more, which go on from what these have recorded."""
        again = Fakes(len(self.tuners), counts=self.counts)
        again.log += self.log
        for k, search in enumerate(again.tuners):
            first: dict[int, int] = {}
            for at, (_, trial) in enumerate(self.log):
                if self.log[at][0] == k:
                    first.setdefault(trial.round, at)
            again.recorders[k].resumed = tuple(trial for task, trial in self.log if task == k)
            search.recorded = tuple(RecordedRound(at, round) for round, at in first.items())
        return again

    def run(
        self, trials: int | None = None, watch: Watch | None = None, objective: str = "sum", strategy: str = "gain"
    ) -> NetworkSearch:
        networks = [f"net{n}" for n in range(len(self.counts[0]))]
        start = {name: sum(counts[n] for counts in self.counts) for n, name in enumerate(networks)}
        effort = Effort(trials, strategy=strategy)
        search = NetworkSearch(
            self.tuners, networks, parse_objective(objective).bind(start), effort.scheduler, FinalisationTime(0.0, (0.0,)),
            self.stopwatch, trials, () if watch is None else (watch,),
        )  # fmt: skip
        search.run()
        return search


def test_tasks_take_turns_until_the_trials_are_used() -> None:
    fakes, watch = Fakes(3), Watch()
    search = fakes.run(40, watch)
    assert (search.n_trials, search.interrupted) == (40, False)
    assert [event.turn for event in watch.turns[:3]] == [2, 1, 0]  # called 3, 2 and 1 times
    assert [m.batches[0] for m in fakes.measurers] == [4, 4, 4]
    assert sum(sum(m.batches) for m in fakes.measurers) == 40
    assert watch.turns[2].kernels_s is None
    assert [event.trials for event in watch.ends] == [40]
    last = watch.ends[0]
    assert last.kernels_s is not None
    assert last.kernels_s == pytest.approx(sum(t.count * (t.best_s or 0.0) for t in last.tasks))
    assert sum(task.share for task in last.tasks) == pytest.approx(1.0)
    curve = [point.latencies[0] for point in search.curve]
    assert curve == sorted(curve, reverse=True)
    for recorder in fakes.recorders:
        assert (recorder.status, bool(recorder.certified)) == ("finished", True)


def test_the_next_task_gets_ready_while_kernels_are_built() -> None:
    """Before any of these is timed; and its seconds are those of its own first round."""
    fakes, seen = Fakes(3), []

    def begin_late(task: Any) -> TaskSession:
        seen.append((task.number, [len(m.measured) for m in fakes.measurers]))
        fakes.clock.now += 5.0
        return fakes.start_session(task)

    for each in fakes.tuners:
        each.start_session = begin_late
    search = fakes.run(40)
    assert seen == [(2, [0, 0, 0]), (1, [0, 0, 0]), (0, [0, 0, 4])]
    assert [s.rounds[0].seconds for s in search.tuners] == pytest.approx([5.4, 5.4, 5.4], abs=0.05)


def test_a_task_that_was_ready_and_had_no_round_has_not_failed() -> None:
    fakes = Fakes(1)
    (search,) = fakes.tuners
    search.prepare()
    search.finish(interrupted=False)
    assert (fakes.recorders[0].status, fakes.measurers[0].measured) == ("interrupted", [])


def test_it_ends_by_itself_when_nothing_is_gained() -> None:
    fakes = Fakes(2)
    search = fakes.run()
    assert 8 < search.n_trials < 400
    assert Fakes(2, bound_s=0.9).run().n_trials == 8  # whatever is measured is below the roof
    assert Fakes(2, bound_s=1.0).run().n_trials == 0  # what the network has is at the roof


def test_a_failing_task_keeps_its_schedule() -> None:
    fakes = Fakes(3, task1={"fails": lambda i, values: "wrong_result"})

    def refuse(task: Any) -> TaskSession:
        raise UsageError("there is no room")

    fakes.tuners[0].start_session = refuse
    search = fakes.run(60)
    first, second, third = search.tuners
    assert (first.error, first.best_steps, len(first.trials)) == ("there is no room", None, 0)
    assert (second.best_steps, len(second.rounds)) == (None, 2)
    assert third.best_steps is not None
    assert [r.status for r in fakes.recorders] == ["running", "failed", "finished"]


def test_ctrl_c_ends_the_search_with_what_it_has() -> None:
    fakes, watch = Fakes(2, task0={"interrupt_after": 2}), Watch()
    search = fakes.run(40, watch)
    assert (search.interrupted, search.n_trials, watch.ends) == (True, 6, [])
    assert search.tuners[0].best_steps is not None
    assert [r.status for r in fakes.recorders] == ["interrupted", "interrupted"]
    assert [r.certified for r in fakes.recorders] == [{}, {}]


def test_a_lost_device_ends_it() -> None:
    fakes = Fakes(3)

    def lose(task: Any) -> TaskSession:
        raise DeviceError("it is gone")

    fakes.tuners[1].start_session = lose  # one alone may have data that do not fit
    assert fakes.run(20).tuners[1].error == "it is gone"
    fakes = Fakes(3)
    fakes.tuners[0].start_session = fakes.tuners[1].start_session = lose
    with pytest.raises(DeviceError, match="it is gone"):
        fakes.run(40)
    assert fakes.recorders[2].status == "finished"


def test_a_bug_costs_its_task_only() -> None:
    fakes = Fakes(2)

    def fail(task: Any) -> TaskSession:
        raise AssertionError("a rule is wrong")

    fakes.tuners[0].start_session = fail
    search = fakes.run(20)
    assert [s.error for s in search.tuners] == ["AssertionError: a rule is wrong", None]
    assert len(search.tuners[1].trials) >= 4


def test_the_time_left_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    Fakes(2).run(20, watch)
    times = [event.eta_s for event in watch.turns]
    assert times[0] is None
    assert watch.ends[0].eta_s == 0.0
    assert all(isinstance(time, float) for time in times[1:])


def test_a_better_record_is_kept() -> None:
    fakes = Fakes(1)
    fakes.tuners[0].task.has_schedule = True
    fakes.recorders[0].known_s = 1e-9
    assert fakes.run(8).tuners[0].best_steps is None
    fakes.recorders[0].known_s = 1.0
    assert fakes.tuners[0].best_steps is not None


@pytest.mark.parametrize(("strategy", "after"), [("gradient", 2), ("gradient", 13), ("gain", 6), ("round-robin", 9)])
def test_a_search_goes_on_as_if_it_had_not_been_interrupted(strategy: str, after: int) -> None:
    whole = Fakes(2)
    assert whole.run(40, strategy=strategy).n_trials == 40
    first = Fakes(2, task1={"interrupt_after": after})
    assert first.run(40, strategy=strategy).interrupted
    n = len(first.log)
    assert n < 40
    second = first.resumed()
    search = second.run(40, strategy=strategy)
    assert (search.n_trials, sum(s.n_resumed for s in search.tuners)) == (40, n)
    assert second.log == whole.log
    again = second.resumed()
    assert again.run(40, strategy=strategy).n_trials == 40
    assert len(again.log) == 40  # nothing is left to measure


def test_a_budget_of_trials_smaller_than_what_is_on_record() -> None:
    first = Fakes(3)
    first.run(60)
    again = first.resumed()
    assert again.run(20).n_trials in range(20, 20 + 16)  # whole rounds of records
    assert len(again.log) == 60


def test_an_objective_of_several_networks_says_where_rounds_go() -> None:
    counts = ((5, 0), (0, 1))  # each network has a kernel of its own
    assert Fakes(2, counts=counts).run(80).tuners[0].task.counts == (5, 0)
    both, second = ([len(s.rounds) for s in Fakes(2, counts=counts).run(80, objective=o).tuners] for o in (
        "sum", "required:net0=9s,net1=1us"
    ))  # fmt: skip
    assert second[0] <= 1 < second[1]
    assert both[0] > second[0]
    search = Fakes(2, counts=((1, 2), (3, 0))).run(8)
    first_s, second_s = (s.now_s for s in search.tuners)
    assert search.latencies == pytest.approx({"net0": first_s + 3 * second_s, "net1": 2 * first_s})


def test_an_early_stop_leaves_tasks_alone() -> None:
    search = Fakes(2).run(8)
    search.tuners[0].rounds += [TuningRound(1.0, 2.0, 8)] * 4
    search.tuners[1].rounds += [TuningRound(1.0, 2.0, 8)] * 3 + [TuningRound(1.0, 1.9, 8)]
    assert [task_state.weight for task_state in search.task_states] == pytest.approx([1.0, 2.0])
    search.objective = parse_objective("early-stop").bind({"net0": 1.0})
    assert [task_state.weight for task_state in search.task_states] == pytest.approx([0.0, 2.0])


def test_an_objective_that_fails_later_ends_the_search() -> None:
    fakes = Fakes(2)
    failing = Objective("mine", lambda latencies: latencies["net0"] if latencies["net0"] > 1.0 else None)
    search = NetworkSearch(
        fakes.tuners, ["net0"], failing, Effort().scheduler, FinalisationTime(0.0, (0.0,)), fakes.stopwatch
    )
    with pytest.raises(UsageError, match="the objective mine must return a finite number, got None"):
        search.run()
    assert {r.status for r in fakes.recorders} == {"finished"}


def test_the_end_has_its_part_of_a_budget() -> None:
    def seconds(finalisation: FinalisationTime, budget_s: float = 20.0, late_s: float = 0.0) -> float:
        fakes = Fakes(3)
        fakes.clock.now += late_s
        fakes.stopwatch.budget_s = budget_s
        search = NetworkSearch(
            fakes.tuners, ["net0"], parse_objective("sum").bind({"net0": 6.0}), Effort(budget_s=budget_s).scheduler, finalisation,
            fakes.stopwatch,
        )  # fmt: skip
        assert search.scheduler.budget == pytest.approx(budget_s - late_s, abs=0.1)
        search.run()
        assert all(m.compared for m in fakes.measurers) is search.can_continue()
        return fakes.stopwatch.elapsed()

    assert 8.0 < seconds(FinalisationTime(900.0, (0.0,)), 22.0, late_s=6.0) - 6.0 < 11.0  # of what loading has left
    assert 14.0 < seconds(FinalisationTime(0.0, (0.0,))) < 20.0
    assert 8.0 < seconds(FinalisationTime(8.0, (0.0,))) < 11.0
    assert 9.0 < seconds(FinalisationTime(900.0, (0.0,))) < 12.0  # half is for rounds, whatever the end takes


# Whole calls


class FakeNetworks:
    """Networks as text, their tasks' schedules; `times`: seconds of whole calls, `inside`: of kernels by schedule."""

    def __init__(self, times: dict[str, float], inside: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.times, self.inside = times, inside
        self.built: list[str] = []
        monkeypatch.setattr(
            whole_calls, "interleaved_samples", lambda models, inputs: [(times[m],) * 3 for m in models]
        )
        monkeypatch.setattr(whole_calls, "times_in_network", lambda models, inputs: list(map(self.kernels, models)))

    def kernels(self, model: str) -> dict[str, float]:
        schedules = dict(zip("xyz", model, strict=False)) if model else {}
        return {task: self.inside[schedules.get(task, "-")] for task in "xyz"}

    def build(self, steps: Mapping[str, str]) -> Any:
        self.built.append("".join(steps.get(task, "-") for task in "xyz"))
        return self.built[-1]


@pytest.mark.parametrize(
    ("times", "inside", "kept"),
    [
        ({"": 9.0, "abc": 5.0}, {"-": 2.0, "a": 1.0, "b": 2.0, "c": 1.5}, "abc"),
        ({"": 9.0, "abc": 5.0, "--c": 3.0}, {"-": 2.0, "a": 2.5, "b": 3.0, "c": 1.0}, "--c"),
        ({"": 9.0, "abc": 5.0, "a-c": 5.0}, {"-": 2.0, "a": 1.0, "b": 3.0, "c": 1.0}, "abc"),
        ({"": 4.0, "abc": 5.0}, {"-": 2.0, "a": 2.5, "b": 2.5, "c": 2.5}, ""),
    ],
)
def test_schedules_that_do_not_help_the_network_are_left_out(
    times: dict[str, float], inside: dict[str, float], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, start = FakeNetworks(times, inside, monkeypatch), cast("Any", "")
    found = {"x": ["a"], "y": ["b"], "z": ["c"]}
    outcome = choose_schedules(start, found, networks.build, {}, lambda: True)
    assert cast("str", outcome.model) == kept
    assert outcome.before == (times[""],) * 3
    assert outcome.after == (times[kept],) * 3
    at_once = choose_schedules(start, found, networks.build, {}, lambda: False)
    assert cast("str", at_once.model) == ("abc" if times["abc"] < times[""] else "")


def test_the_next_best_schedules_are_tried_inside_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"": 9.0, "abc": 6.0, "dbc": 6.5, "ebc": 7.0, "dbf": 5.0}
    inside = {"-": 2.0, "a": 1.5, "b": 1.5, "c": 1.5, "d": 1.0, "e": 1.1, "f": 1.0}
    found = {"x": ["a", "d", "e"], "y": ["b"], "z": ["c", "f"]}
    networks = FakeNetworks(times, inside, monkeypatch)
    assert cast("str", choose_schedules(cast("Any", ""), found, networks.build, {}, lambda: True).model) == "dbf"
    assert networks.built == ["abc", "dbf", "ebc", "dbf"]
    networks = FakeNetworks(times, inside, monkeypatch)
    assert cast("str", choose_schedules(cast("Any", ""), found, networks.build, {}, lambda: False).model) == "abc"
    assert networks.built == ["abc"]


def test_what_is_about_as_fast_is_not_preferred() -> None:
    start, first = {"x": 2.0, "y": 2.0}, {"x": 1.0, "y": 2.03}
    tried = [({"x": "a", "y": "b"}, first), ({"x": "c", "y": "b"}, {"x": 0.99, "y": 1.0})]
    assert fastest_in_network(start, tried) == {"x": "a", "y": "b"}
    tried[1] = ({"x": "c", "y": "b"}, {"x": 0.9, "y": 1.0})
    assert fastest_in_network({"x": 2.0, "y": 1.9}, tried) == {"x": "c"}


def test_kernels_are_timed_as_they_run_in_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (autosched.load(networks.perceptron(), threads=1, records=False) for _ in range(2))
    numbers = iter(range(100))

    def profile(model: Model, inputs: object, budget_s: float) -> NetworkProfile:
        disturbed = 5.0 if next(numbers) < 2 else 1.0
        slow = before.tasks[1].steps if model is after else ()
        return NetworkProfile({n: disturbed * (1.5 if n in slow else 1.0) for n in range(9)}, 1.0)

    monkeypatch.setattr(whole_calls, "profile", profile)
    first, second = whole_calls.times_in_network([before, after], {})
    assert set(first.values()) == {1.0}
    assert {spec for spec, seconds in second.items() if seconds > 1.0} == {before.tasks[1].kernel_spec.workload}


# With workers


def test_a_network_is_tuned_and_what_was_found_is_loaded(tmp_path: Path) -> None:
    graph, path, watch = small(), tmp_path / "records.db", Watch()
    model = autosched.load(graph, threads=1, db=path)
    result = tune_network(model, Effort(trials=7), path, (watch,))
    assert (result.trials, result.failed, result.interrupted, result.verified) == (7, 0, False, True)
    assert [task.count for task in result.tasks] == [1, 1, 1]
    assert sum(task.trials for task in result.tasks) == 7
    assert result.max_error < 1e-5
    given = np.random.default_rng(1).normal(size=(1, 3, 7, 5)).astype("float32")
    wanted = interpret(graph, {"x": given})[graph.outputs[0]]
    np.testing.assert_allclose(result.model(given), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    again = autosched.load(graph, threads=1, db=path)
    assert [bool(task.kernel_spec.steps) for task in again.tasks] == [task.trials > 0 for task in result.tasks]
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
    measure, interleaved_samples = Measurer.measure, whole_calls.interleaved_samples

    def twice(*given: Any) -> Any:
        contests.append(len(contests))
        if contests == [0]:
            raise KeyboardInterrupt
        return interleaved_samples(*given)

    def interrupted(self: Measurer, *given: Any) -> Any:
        yield from itertools.islice(measure(self, *given), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurer, "measure", interrupted)
    monkeypatch.setattr(whole_calls, "interleaved_samples", twice)
    result = tune_network(autosched.load(graph, threads=1, db=path), db=path)
    assert (result.trials, result.interrupted) == (2, True)
    assert result.model(np.zeros((2, 3), "float32")).shape == (2, 17)
    again = autosched.load(graph, threads=1, db=path)
    assert [bool(task.kernel_spec.steps) for task in again.tasks] == [True]


def test_numbers_that_make_no_sense(tmp_path: Path) -> None:
    model = autosched.load(networks.perceptron((3, 5)), threads=1, records=False)
    with pytest.raises(UsageError, match="trials must be a whole number"):
        tune_network(model, Effort(trials=0), tmp_path / "records.db")
    with pytest.raises(UsageError, match="budget_s must be"):
        tune_network(model, Effort(budget_s=-1.0), tmp_path / "records.db")
    assert not list(tmp_path.iterdir())
