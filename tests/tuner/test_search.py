from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosched.tuner.policy import Policy
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.search import Search
from autosched.tuner.task import training_data
from search_spaces import space
from search_spaces.space import Sketch
from tests.tuner.fakes import FakeModel, sketch, tiny, true_seconds

SKETCHES = (sketch("plain"), sketch("packed"), sketch("fused"))


def start(seed: int = 0, sketches: tuple[Sketch, ...] = SKETCHES) -> tuple[Search[Sketch], FakeModel]:
    model = FakeModel(sketches)
    return Search[Sketch](space, sketches, model, seed), model


def timed(candidates: tuple[Candidate, ...], round: int = 0) -> list[Trial]:
    return [Trial(c, round, float(true_seconds(c.sketch, np.array([c.values]))[0])) for c in candidates]


def play(seed: int, rounds: list[tuple[int, str]]) -> list[tuple[Candidate, ...]]:
    search, model = start(seed)
    played = []
    for round, (n, phase) in enumerate(rounds):
        picks = search.propose(round, n, phase)
        played.append(picks)
        trials = timed(picks, round)
        search.observe(trials)
        model.update(*training_data(trials))
    return played


def test_first_candidates_differ_in_their_vectors() -> None:
    def wide(name: str) -> Sketch:
        made = sketch(name)
        params = tuple(replace(p, kind="vector") if p.name == "j3" else p for p in made.params)
        return replace(made, params=params)

    def first(policy: Policy) -> list[int]:
        sketches = (wide("plain"), wide("packed"), wide("fused"))
        search = Search[Sketch](space, sketches, FakeModel(sketches), 0, policy)
        picks = search.propose(0, 3, "draft")
        assert len({c.sketch for c in picks}) == 3
        return [c.values[5] for c in picks]

    assert len(set(first(Policy(another_of_width=9.0)))) == 3
    assert len(set(first(Policy(another_of_width=0.0)))) < 3  # the draft likes one width in all sketches


def test_the_first_round_ends_with_what_was_fastest_for_other_shapes() -> None:
    known = [
        Candidate(1, (1, 4, 6, 1, 2, 16, 64)),
        Candidate(1, (1, 4, 6, 1, 2, 16, 64)),
        Candidate(0, (1,) * 6 + (0,)),
    ]

    def first(policy: Policy, round: int = 0, phase: str = "draft") -> tuple[Candidate, ...]:
        return Search[Sketch](space, SKETCHES, FakeModel(SKETCHES), 0, policy, known).propose(round, 4, phase)

    drafted = start()[0].propose(0, 4, "draft")
    assert first(Policy()) == (*drafted[:2], known[0], known[2])  # each once
    assert first(Policy(relatives=1)) == (*drafted[:3], known[0])
    assert known[2] not in first(Policy(relatives=1))
    assert first(Policy(relatives=0)) == drafted
    assert not {*known} & {*first(Policy(), phase="random")}
    assert first(Policy(), 1) == first(Policy(relatives=0), 1)


ROUNDS = [(4, "draft"), (8, "draft"), (8, "evolve"), (8, "evolve"), (8, "descend"), (8, "descend")]


def test_proposals_are_legal_distinct_and_in_their_domains() -> None:
    played = play(3, ROUNDS)
    model = FakeModel(SKETCHES)
    everything = [c for picks in played for c in picks]
    assert [len(picks) for picks in played] == [n for n, _ in ROUNDS]
    assert len(set(everything)) == len(everything)
    for c in everything:
        row = np.array([c.values])
        assert model.legal(c.sketch, row).all()
        assert space.contains(SKETCHES[c.sketch], row).all()


def test_no_program_is_proposed_twice() -> None:
    def counted(name: str) -> Sketch:
        made = sketch(name)
        return replace(made, params=tuple(replace(p, counts=p.name in ("i1", "j1")) for p in made.params))

    sketches = (counted("plain"), counted("packed"))
    search = Search[Sketch](space, sketches, FakeModel(sketches), 0)
    programs = []
    for round, (n, phase) in enumerate(ROUNDS):
        picks = search.propose(round, n, phase)
        search.observe(timed(picks, round))
        rows = [space.canonical(sketches[c.sketch], np.array([c.values]))[0] for c in picks]
        programs += [(c.sketch, *map(int, row)) for c, row in zip(picks, rows, strict=True)]
    assert len(set(programs)) == len(programs)


def test_same_seed_and_measurements_give_the_same_candidates() -> None:
    assert play(5, ROUNDS) == play(5, ROUNDS)
    assert play(5, ROUNDS) != play(6, ROUNDS)


def test_a_round_depends_on_what_was_observed_only() -> None:
    search, _ = start(1)
    first = search.propose(0, 4, "draft")
    search.observe(timed(first))
    expected = search.propose(1, 8, "evolve")
    again, _ = start(1)  # never asked for round 0
    again.observe(timed(first))
    assert again.propose(1, 8, "evolve") == expected


def test_the_first_batch_is_spread_over_sketches() -> None:
    search, _ = start()
    assert len({c.sketch for c in search.propose(0, 4, "draft")}) >= 2


def test_the_search_finds_a_better_row_than_the_draft_does() -> None:
    played = play(0, ROUNDS)
    best = [min(t.seconds or 1.0 for t in timed(picks)) for picks in played]
    assert min(best[2:]) < best[0]
    assert min(best) < 1.2e-3  # the optimum is near 1e-3, a random legal row near 4e-3


def test_no_row_next_to_the_draft_s_best_is_better() -> None:
    for seed in range(3):
        search, model = start(seed)
        pool = search._make_draft()
        sketch, local, score = pool.flat()
        best = pool.parts[int(sketch[0])].rows[local[0]]
        near = space.neighbours(SKETCHES[int(sketch[0])], best[None, :])
        near = near[model.legal(int(sketch[0]), near)]
        assert (-np.log(model.analytic_latency(int(sketch[0]), near)) <= score[0] + 1e-9).all()
        assert pool.best_score == score[0]


def test_descent_stays_next_to_the_best() -> None:
    search, _ = start()
    centre = Candidate(1, (1, 4, 6, 1, 2, 16, 64))
    search.observe(timed((centre,)))
    near = {tuple(r) for r in space.neighbours(SKETCHES[1], np.array([centre.values])).tolist()}
    assert all(c.sketch == 1 and c.values in near for c in search.propose(4, 8, "descend"))


def test_a_slow_neighbour_does_not_decide_which_trial_is_best() -> None:
    """Three of four samples of the first were disturbed, so that its median says the opposite."""
    quick = Trial(Candidate(0, (0,)), 0, 2.0, (1.0, 2.0, 2.0, 2.0))
    slow = Trial(Candidate(0, (1,)), 0, 1.5, (1.5, 1.5, 1.5))
    failed = Trial(Candidate(0, (2,)), 0, None, (), "wrong_result")
    search, _ = start()
    search.observe([slow, failed, quick])
    assert search._best(3) == [quick, slow]
    assert training_data([quick, slow, failed])[2] == [1.0, 1.5, np.inf]
    assert Trial(Candidate(0, (0,)), 0, 2.0).undisturbed_s == 2.0  # recorded without samples


def test_phases() -> None:
    search, _ = start()
    assert search.phase(0.9) == "draft"
    search.observe(timed(search.propose(0, 12, "draft")))
    assert search.phase(0.12) == "evolve"
    assert search.phase(0.9) == "descend"


@pytest.mark.parametrize("phase", ["draft", "evolve", "descend"])
def test_a_small_space_is_used_up_exactly(phase: str) -> None:
    sketches = (tiny("a"), tiny("b"))
    search, _ = start(0, sketches)
    found: list[Candidate] = []
    for round in range(10):
        picks = search.propose(round, 5, phase)
        search.observe(timed(picks))
        found += picks
    assert len(found) == len(set(found)) == 12
    assert search.propose(11, 5, phase) == ()


def test_a_sketch_that_only_fails_is_left_alone() -> None:
    search, _ = start()
    for round in range(10):
        picks = search.propose(round, 8, "draft" if round == 0 else "evolve")
        search.observe([t if t.candidate.sketch != 1 else Trial(t.candidate, round, None) for t in timed(picks)])
    failed = sum(t.seconds is None for t in search._trials)
    assert 0 < failed <= 11  # at most the three that were missing to HOPELESS, and one round more
    assert all(c.sketch != 1 for c in search.propose(11, 16, "evolve"))


def test_scores_that_are_not_numbers_do_no_harm() -> None:
    class Broken(FakeModel):
        def score(self, i: int, rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), np.nan)

    search = Search[Sketch](space, SKETCHES, Broken(SKETCHES), 0)
    search.observe(timed(search.propose(0, 4, "draft")))
    assert len(search.propose(1, 8, "evolve")) == 8
