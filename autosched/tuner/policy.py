"""How a search goes about it, in two records: an experiment is another `SearchSetup`, not another program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

from autosched.errors import UsageError

if TYPE_CHECKING:
    from search_spaces.space import Sketch

    Narrow = Callable[[tuple[Sketch, ...]], tuple[Sketch, ...]]

RULE = "search_spaces.partial_sketch.SketchRule"


@dataclass(frozen=True)
class Policy:
    """What the search does with its trials; the defaults are what tuning uses.

    Shares are of the trials or of the time, whichever is further. Without the full system:

        Policy(random=True)                        random legal rows only
        Policy(learned=False)                      the draft alone judges, nothing is learned from measurements
        Policy(draft=False)                        random first rounds; the model learns from measurements alone
        Policy(relatives=0)                        nothing is taken over from other shapes' records
        Policy(crossover=0.0), Policy(descent_share=0.0)
    """

    random: bool = False
    learned: bool = True
    draft: bool = True

    first_batch: int = 4  # a small first round: a verified result soon
    relatives: int = 2  # ... with so many of the nearest shapes that the operator has records of
    batch: tuple[int, int] = (8, 16)  # later rounds, an eighth of the trials within these limits

    draft_rows: int = 32_768  # rows drawn for the draft, shared by the sketches
    draft_per_sketch: int = 512  # ... but at least so many for each
    draft_retries: int = 3  # further draws for a sketch with few legal rows
    draft_generations: int = 3  # generations of evolution under the analytic latency
    draft_descents: int = 6  # then all neighbours of its best rows, so many times over
    draft_descended: int = 16  # ... of so many each time, at first also of each sketch's best
    draft_slower: float = 8.0  # ... unless what it has drawn is said to be so many times slower than the best of all
    draft_in_vain: int = 2  # ... until so many of these in a row find nothing better
    draft_trials: int = 12  # measurements that follow the draft alone
    cover_share: float = 0.35  # at most, goes into trying each sketch once: the draft ranks rows better than sketches
    shortlist: int = 4  # rows of a sketch and vector width from which its first one is taken
    another_of_width: float = 0.05  # a further one with the same vectors must promise to be so much faster, for each
    alike: int = 3  # ... of so many that there are
    another_of_sketch: float = 0.25  # in the draft, a sketch's next row must promise to be exp(0.25) times as fast

    population: int = 2048
    generations: int = 4  # more gain nothing (TVM pull request 6994)
    elite: int = 512  # rows that have children
    mutation: float = 0.85  # a child's chance to be mutated
    crossover: float = 0.4  # a child's chance to have two parents
    epsilon: float = 0.05  # share of picks that are random legal rows
    another_in_evolution: float = 0.05  # as `another_of_sketch`, in standard deviations of the best scores

    descent_share: float = 0.2  # the end of the search, coordinate descent
    descent_centres: int = 3  # ... around so many of the best
    hopeless: int = 4  # failures without one success after which a sketch is left alone

    def round_size(self, round: int, trials: int) -> int:
        """Candidates of a round in a search of `trials`."""
        low, high = self.batch
        return self.first_batch if round == 0 else min(max(trials // 8, low), high)


FULL = Policy()


@dataclass(frozen=True)
class SearchSetup:
    """What experiments change of a search, and what needs no device; the defaults are what tuning does.

    `narrow` makes of the sketches those that are searched. `measure` False: the cost model alone decides, for any
    processor or GPU, and nothing runs or is recorded; with `simulate` its best candidates for CUDA are verified on the
    processor, and those that are wrong left out. `started`: when the command began, on `time.monotonic`; None is
    now. Raises UsageError for what is of another kind.
    """

    policy: Policy = FULL
    narrow: Narrow | None = None
    measure: bool = True
    simulate: bool = False
    started: float | None = None

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("policy", isinstance(self.policy, Policy), "a Policy (autosched.tuner.policy)"),
            ("narrow", self.narrow is None or callable(self.narrow), "a function of sketches"),
            ("measure", isinstance(self.measure, bool), "True or False"),
            ("simulate", isinstance(self.simulate, bool) and not (self.simulate and self.measure), "False if measure"),
            ("started", isinstance(self.started, Real | None), "seconds on time.monotonic"),
        ):
            if not is_right:
                raise UsageError(f"{name} must be {expected}, got {getattr(self, name)!r}")


def check_search(rules: object, callbacks: object, setup: object, resume: object) -> None:
    """Raises UsageError for what is not of the kind that `tune` takes: before the search, which would fall over it."""

    def are(found: object, *methods: str) -> bool:
        return isinstance(found, Sequence) and all(callable(getattr(x, m, None)) for x in found for m in methods)

    events = ("on_start", "on_round", "on_result", "on_finish")
    for name, value, is_right, expected in (
        ("rules", rules, are(rules, "applies", "apply"), f"a sequence of sketch rules ({RULE})"),
        ("callbacks", callbacks, are(callbacks, *events), "a sequence of callbacks (autosched.tuner.callbacks)"),
        ("search", setup, isinstance(setup, SearchSetup), "a SearchSetup (autosched.tuner.policy)"),
        ("resume", resume, isinstance(resume, bool), "True or False"),
    ):
        if not is_right:
            raise UsageError(f"{name} must be {expected}, got {value!r}")
    if resume and isinstance(setup, SearchSetup) and not setup.measure:
        raise UsageError("resume goes on with what was measured, but by the model alone (--no-run) nothing is")
