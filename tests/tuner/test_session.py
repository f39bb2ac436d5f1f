from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autosched.errors import Interrupted, NoValidCandidate
from autosched.tuner.callbacks import Event
from autosched.tuner.policy import FULL, Policy
from autosched.tuner.progress import Stopwatch
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.result import Result
from autosched.tuner.session import Settings, begin, run
from tests.tuner.fakes import Clock, FakeMeasurer, FakeModel, FakeRecorder, make_task, tiny


class Watch:
    def __init__(self) -> None:
        self.started: list[Event] = []
        self.rounds: list[Event] = []
        self.results: list[Event] = []
        self.finished: list[Result] = []

    def on_start(self, event: Event) -> None:
        self.started.append(event)

    def on_round(self, event: Event) -> None:
        self.rounds.append(event)

    def on_result(self, event: Event) -> None:
        self.results.append(event)

    def on_finish(self, result: Result) -> None:
        self.finished.append(result)


class Setup:
    """A task with its fakes; `run` plays a session."""

    def __init__(self, resumed: tuple[Trial, ...] = (), **measurer: object) -> None:
        self.clock = Clock()
        self.measurer = FakeMeasurer(self.clock, **measurer)  # type: ignore[arg-type]
        self.recorder = FakeRecorder(resumed=resumed)
        self.watch = Watch()
        self.task = make_task()

    peaks: tuple[float, ...] = (2.0, 1.9)  # what readings give, the last one ever after
    n_readings = 0

    def read_peak(self, best: Candidate | None) -> float:
        self.n_readings += 1
        return self.peaks[min(self.n_readings, len(self.peaks)) - 1]

    def run(self, trials: int = 40, budget_s: float | None = None, seed: int = 0, policy: Policy = FULL) -> Result:
        settings = Settings(trials, budget_s, seed, policy, started=99.0)
        return run(
            self.task, settings, self.measurer, self.recorder, (self.watch,), read_peak=self.read_peak, clock=self.clock
        )

    @property
    def model(self) -> FakeModel:
        assert isinstance(self.task.model, FakeModel)
        return self.task.model


def test_a_session_measures_its_trials_and_reports_them() -> None:
    setup = Setup()
    result = setup.run(40)
    assert (result.trials, result.failed, len(setup.recorder.trials)) == (40, 0, 40)
    assert setup.measurer.batches == [FULL.first_batch, 8, 8, 8, 8, 4]
    assert len(set(setup.measurer.measured)) == 40
    assert result.best_s == min(t.seconds or 1.0 for t in setup.recorder.trials)
    assert result.best_ci_s[0] <= result.best_s <= result.best_ci_s[1]
    assert result.gflops == pytest.approx(1e6 / result.best_s / 1e9)
    assert result.fraction_of_peak == pytest.approx(result.gflops / 2.0)
    assert result.measure_s == pytest.approx(4.0)
    assert result.wall_s > result.measure_s
    assert 1.0 < result.first_result_s < 2.0  # counts from `started`
    assert result.verified
    assert not result.interrupted
    bests = [p.best_s for p in result.curve]
    assert bests == sorted(bests, reverse=True)
    assert [p.trial for p in result.curve] == sorted(p.trial for p in result.curve)
    assert result.record_id in setup.recorder.certified
    assert len(setup.recorder.certified) == 4
    assert setup.recorder.status == "finished"
    assert setup.model.prepared == 1


def test_the_json_object_has_the_contract_fields_and_is_json() -> None:
    data = json.loads(json.dumps(Setup().run(8).to_json(), allow_nan=False))
    contract = (
        "schema_version workload shape dtype target threads trials failed wall_s search_s build_s measure_s "
        "first_result_s best_s best_ci_s gflops peak_gflops fraction_of_peak record_id verified"
    )
    assert set(contract.split()) <= set(data)
    assert data["schema_version"] == 1
    assert data["shape"] == [1, 64, 64]
    assert len(data["best_ci_s"]) == 2


def test_the_result_says_how_soon_the_search_was_there() -> None:
    setup = Setup()
    result = setup.run(40)
    times = [t.seconds or 1.0 for t in result.records]
    expected = next(n for n in range(1, 41) if 0.95 * min(times[:n]) <= min(times))
    assert result.trials_to_95 == expected
    assert result.first_round_ratio == pytest.approx(min(times[: FULL.first_batch]) / min(times))
    assert result.first_result_s <= result.seconds_to_95 <= result.wall_s
    assert result.prepare_s == pytest.approx(1.0, abs=0.1)  # from `started`
    parts = ("prepare", "search", "model", "build", "check", "measure", "other")
    data = result.to_json()
    assert sum(data[f"{part}_s"] for part in parts) == pytest.approx(data["wall_s"])
    assert 0.0 <= result.other_s < 0.2  # the fake clock's ticks
    setup.recorder.known_s = min(times) / 2
    better_known = setup.run(40)
    assert (better_known.trials_to_95, better_known.seconds_to_95) == (None, None)
    assert better_known.best_known_s == min(times) / 2


@pytest.mark.parametrize(
    ("policy", "phases"),
    [
        (FULL, {"draft", "evolve", "descend", "final"}),
        (Policy(random=True), {"random", "final"}),
        (Policy(draft=False), {"random", "evolve", "descend", "final"}),
        (Policy(learned=False), {"draft", "evolve", "descend", "final"}),
        (Policy(crossover=0.0), {"draft", "evolve", "descend", "final"}),
        (Policy(descent_share=0.0), {"draft", "evolve", "final"}),
    ],
)
def test_a_policy_leaves_parts_of_the_search_out(policy: Policy, phases: set[str]) -> None:
    setup = Setup()
    scored: list[int] = []
    score = setup.model.score
    setup.model.score = lambda i, rows: scored.append(i) or score(i, rows)  # type: ignore[method-assign]
    drafted: list[int] = []
    draft = setup.model.analytic_latency
    setup.model.analytic_latency = lambda i, rows: drafted.append(i) or draft(i, rows)  # type: ignore[method-assign]
    result = setup.run(40, policy=policy)
    assert {e.phase for e in setup.watch.rounds} == phases
    assert len(set(setup.measurer.measured)) == result.trials == 40
    assert bool(scored) == (policy.learned and not policy.random)
    assert bool(drafted) == (not policy.random)  # the fake's score asks for its draft


def test_sessions_take_turns_round_by_round() -> None:
    """A round here, a round there: each session does what it does alone, and the best few are compared at its end."""
    alone, first, second = Setup(), Setup(), Setup()
    alone.run(20)
    watch = Stopwatch(first.clock, 100.0, None)
    sessions = [begin(s.task, Settings(20), s.measurer, s.recorder, watch, (s.watch,)) for s in (first, second)]
    for session in sessions:
        session.load_history()
    for done, n in ((0, 4), (4, 8), (12, 8)):
        for session in sessions:
            assert session.step(n, done / 20)
    assert first.measurer.measured == second.measurer.measured == alone.measurer.measured
    sessions[0].compare()
    sessions[0].finish()
    assert len(first.recorder.certified) == 4
    assert (first.recorder.status, second.recorder.status) == ("finished", "running")


def test_a_step_takes_over_rounds_of_records_first() -> None:
    before = Setup()
    before.run(12)
    records = tuple(replace(t, record_id=n) for n, t in enumerate(before.recorder.trials))
    setup = Setup(resumed=records)
    session = begin(setup.task, Settings(), setup.measurer, setup.recorder, Stopwatch(setup.clock, 100.0, None))
    session.load_history()
    while session.has_history_left:
        assert session.step(0, 0.0)
    assert (session.progress.resumed, setup.measurer.measured) == (12, [])
    assert session.step(8, 0.5)
    assert len(setup.measurer.measured) == 8
    assert not set(setup.measurer.measured) & set(before.measurer.measured)


def test_a_step_says_when_the_space_is_used_up() -> None:
    setup = Setup()
    setup.task = make_task((tiny("small"),))
    session = begin(setup.task, Settings(), setup.measurer, setup.recorder, Stopwatch(setup.clock, 100.0, None))
    assert [session.step(4, 0.0) for _ in range(3)] == [True, True, False]
    assert len(session.progress.trials) == 6


def test_callbacks_hear_of_every_moment() -> None:
    setup = Setup(fails=lambda i, values: "hang" if values[0] == 1 else None)
    result = setup.run(20)
    watch = setup.watch
    assert len(watch.started) == 1
    assert watch.started[0].trials == 20
    assert watch.started[0].n_sketches == 3
    assert [e.trial for e in watch.results] == list(range(1, 21))
    assert watch.finished == [result]
    assert watch.rounds[-1].phase == "final"
    last = watch.results[-1]
    assert last.failed == result.failed > 0
    assert last.eta_s == 0.0
    assert all((e.seconds is None) == (e.failure == "hang") for e in watch.results)
    assert all(e.best_s is None or e.best_s <= (e.seconds or 1.0) for e in watch.results)


def test_the_same_seed_gives_the_same_session() -> None:
    first, second, other = Setup(), Setup(), Setup()
    first.run(30), second.run(30), other.run(30, seed=9)
    assert first.measurer.measured == second.measurer.measured != other.measurer.measured


def test_failures_are_recorded_and_do_not_stop_the_session() -> None:
    setup = Setup(fails=lambda i, values: "wrong_result" if i == 1 else None)
    result = setup.run(32)
    assert result.failures == {"wrong_result": result.failed}
    assert result.failed >= 1
    assert result.sketch != "packed"
    kept = [t for t in setup.recorder.trials if t.failure]
    assert len(kept) == result.failed
    assert kept[0].message == "it was a wrong_result"
    assert kept[0].seconds is None


def test_a_bug_in_code_generation_costs_its_candidate_only() -> None:
    setup = Setup()
    emit = setup.task.emit

    def buggy(i: int, values: object) -> object:
        if i == 0:
            raise IndexError("no such loop")
        return emit(i, values)  # type: ignore[arg-type]

    setup.task = replace(setup.task, emit=buggy)  # type: ignore[arg-type]
    result = setup.run(24)
    assert result.failures.keys() == {"build_error"}
    assert "IndexError: no such loop" in next(t.message for t in setup.recorder.trials if t.failure)


def test_nothing_valid_is_an_error_with_the_first_reason() -> None:
    setup = Setup(fails=lambda i, values: "crash")
    with pytest.raises(NoValidCandidate, match=r"none of the 12 measured .*\(crash 12\).* it was a crash"):
        setup.run(12)
    assert len(setup.recorder.trials) == 12
    assert setup.recorder.status == "failed"


def test_a_small_space_ends_the_session_early() -> None:
    setup = Setup()
    setup.task = make_task((tiny("only"),))
    result = setup.run(64)
    assert result.trials == 6
    assert result.values == {"a": 2, "b": 0}
    assert result.best_s == pytest.approx(1e-3)


def test_a_budget_ends_the_session_but_not_before_a_result() -> None:
    setup = Setup()
    result = setup.run(1000, budget_s=5.0)
    assert 4.0 < result.wall_s < 5.5
    assert 20 < result.trials < 60
    assert Setup().run(1000, budget_s=0.01).trials >= 1


def test_the_search_descends_in_the_last_share_of_the_budget_too() -> None:
    setup = Setup()
    setup.run(10_000, budget_s=12.0)
    late = [e for e in setup.watch.results if e.elapsed_s > 0.85 * 0.9 * 12.0 + 1.6]
    assert {e.phase for e in setup.watch.results} == {"draft", "evolve", "descend"}
    assert late
    assert {e.phase for e in late} == {"descend"}


@pytest.mark.parametrize(("peaks", "expected"), [((2.0, 1.0, 9.0), 2.0), ((2.0, 3.0, 9.0), 3.0)])
def test_the_larger_of_two_peaks_counts(peaks: tuple[float, ...], expected: float) -> None:
    setup = Setup()
    setup.peaks = peaks
    result = setup.run(8)
    assert (result.peak_gflops, setup.n_readings) == (expected, 2)
    assert result.fraction_of_peak == pytest.approx(result.gflops / expected)


def test_the_peak_is_first_read_after_the_first_round() -> None:
    setup = Setup()
    setup.peaks = (1.5, 1.25)
    result = setup.run(8)
    assert [e.peak_gflops for e in setup.watch.results] == [None] * FULL.first_batch + [1.5] * 4
    assert (result.peak_gflops, setup.n_readings) == (1.5, 2)


def test_sources_of_the_fastest_are_not_made_again_for_the_final_comparison() -> None:
    setup = Setup()
    made: list[Candidate] = []
    source = setup.task.emit

    def emit(i: int, values: Mapping[str, int]) -> Any:
        made.append(Candidate(i, tuple(values.values())))
        return source(i, values)

    setup.task = replace(setup.task, emit=emit)
    setup.run(40)
    assert setup.recorder.certified
    assert len(made) == len(set(made)) == 40


def test_a_peak_below_the_best_kernel_is_read_again() -> None:
    setup = Setup()
    setup.task = replace(setup.task, info=replace(setup.task.info, flops=10**9))
    setup.peaks = (0.1, 0.1, 1e6)
    assert setup.run(8).peak_gflops == 1e6
    assert setup.n_readings == 3


def test_an_interrupted_session_does_not_wait_for_another_peak() -> None:
    setup = Setup(interrupt_after=6)
    assert setup.run(40).peak_gflops == 2.0
    assert setup.n_readings == 1  # after the first round


def test_time_left_is_that_of_the_measurements_not_of_the_start() -> None:
    setup = Setup()
    setup.clock.now += 50.0  # imports, workers, sketches
    setup.run(20)
    second = setup.watch.results[1]
    assert second.eta_s is not None
    assert second.eta_s < 5.0


@pytest.mark.parametrize("after", [1, 4, 7, 23])
def test_ctrl_c_keeps_the_best(after: int) -> None:
    setup = Setup(interrupt_after=after)
    result = setup.run(40)
    assert result.interrupted
    assert result.trials == after == len(setup.recorder.trials)
    assert setup.recorder.status == "interrupted"
    assert setup.measurer.compared == []
    assert setup.watch.finished == [result]
    assert result.best_ci_s[0] <= result.best_s <= result.best_ci_s[1]


def test_ctrl_c_before_any_result() -> None:
    with pytest.raises(Interrupted):
        Setup(interrupt_after=0).run(40)


@pytest.mark.parametrize("after", [2, 4, 11, 12, 30, 39])
def test_resuming_continues_as_if_never_interrupted(after: int) -> None:
    whole = Setup()
    expected = whole.run(40)
    cut = Setup(interrupt_after=after)
    cut.run(40)
    records = tuple(replace(t, record_id=n + 1) for n, t in enumerate(cut.recorder.trials))
    rest = Setup(resumed=records)
    result = rest.run(40)
    assert cut.measurer.measured + rest.measurer.measured == whole.measurer.measured
    assert (result.best_s, result.values, result.trials) == (expected.best_s, expected.values, 40)
    assert result.resumed == after


def test_resuming_a_finished_search_measures_nothing_but_the_final_comparison() -> None:
    whole = Setup()
    expected = whole.run(16)
    records = tuple(replace(t, record_id=n + 1) for n, t in enumerate(whole.recorder.trials))
    rest = Setup(resumed=records)
    result = rest.run(16)
    assert rest.measurer.measured == []
    assert len(rest.measurer.compared) == 4
    assert result.best_s == expected.best_s
    assert rest.watch.started[0].resumed == 16


def test_records_of_another_seed_are_used_and_not_measured_again() -> None:
    other = Setup()
    other.run(20, seed=5)
    rest = Setup(resumed=tuple(replace(t, record_id=n + 1) for n, t in enumerate(other.recorder.trials)))
    result = rest.run(40, seed=6)
    assert result.trials == 40
    assert not set(rest.measurer.measured) & set(other.measurer.measured)


def test_the_model_hears_of_all_trials_and_of_failures_as_infinite() -> None:
    setup = Setup(fails=lambda i, values: "hang" if i == 2 else None)
    setup.run(24)
    assert setup.model.updates == [4, 8, 8, 4]
    assert any(s == float("inf") for _, _, s in setup.model.memory)


def test_fitting_is_skipped_when_it_takes_too_long() -> None:
    setup = Setup()
    update = setup.model.update

    def slow(*data: object) -> bool:
        setup.clock.now += 3.0
        return update(*data)  # type: ignore[arg-type]

    setup.model.update = slow  # type: ignore[assignment,method-assign]
    result = setup.run(40)
    assert len(setup.model.updates) == 1
    assert result.model_s == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("unstable", [1, 5])
def test_a_candidate_that_fails_in_the_final_comparison_is_not_the_result(unstable: int) -> None:
    setup = Setup(unstable=unstable)
    result = setup.run(20)
    assert result.failures == {"unstable_result": unstable} == {"unstable_result": result.failed}
    assert len(setup.measurer.compared) == (4 if unstable == 1 else 8)
    best = sorted(t.seconds for t in setup.recorder.trials if t.seconds)[unstable]
    assert result.best_s == best
    assert [t.failure for t in setup.recorder.trials[20:]] == ["unstable_result"] * unstable


def test_all_candidates_failing_in_the_final_comparison_leaves_nothing() -> None:
    with pytest.raises(NoValidCandidate, match="unstable_result 8"):
        Setup(unstable=100).run(8)
