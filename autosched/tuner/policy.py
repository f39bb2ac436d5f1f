"""Parameters of a search: the policy, and the setup that experiments change."""

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
    """Parameters of the search; the defaults are those of `tune`.

    Shares are of the trials or of the time, whichever is used up first. Ablations:

        Policy(random=True)                        random legal rows only
        Policy(learned=False)                      candidates are ordered by the analytic latency alone
        Policy(draft=False)                        random first rounds; the model learns from measurements alone
        Policy(relatives=0)                        no candidates from records of other shapes
        Policy(crossover=0.0), Policy(descent_share=0.0)
    """

    random: bool = False
    learned: bool = True
    draft: bool = True

    first_batch: int = 4  # candidates of the first round: few, for an early verified result
    relatives: int = 2  # candidates of the first round from records of the operator's nearest shapes
    batch: tuple[int, int] = (8, 16)  # limits of later rounds, which are an eighth of the trials

    draft_rows: int = 32_768  # rows drawn for the draft, divided among the sketches
    draft_per_sketch: int = 512  # rows drawn for each sketch at least
    draft_retries: int = 3  # further draws for a sketch with few legal rows
    draft_generations: int = 3  # generations of evolution by the analytic latency
    draft_descents: int = 6  # steps of coordinate descent by the analytic latency, after evolution
    draft_descended: int = 16  # best rows of a step; the first step also has the best of each sketch
    draft_slower: float = 8.0  # sketches whose best row is predicted to be more than this times as slow are left out
    draft_in_vain: int = 2  # steps in a row without a better row, after which the descent ends
    draft_trials: int = 12  # measurements chosen by the draft alone
    cover_share: float = 0.35  # most that goes into trying each sketch once: the draft ranks rows better than sketches
    shortlist: int = 4  # rows of a sketch and vector width from which its first candidate is taken
    another_of_width: float = 0.05  # penalty of a candidate for each earlier one of the same vector widths
    alike: int = 3  # most earlier ones that count for this penalty
    another_of_sketch: float = 0.25  # penalty for each earlier one of the sketch: log of the predicted latencies' ratio

    population: int = 2048
    generations: int = 4  # more do not help (TVM pull request 6994)
    elite: int = 512  # rows that have children
    mutation: float = 0.85  # probability that a child is mutated
    crossover: float = 0.4  # probability that a child has two parents
    epsilon: float = 0.05  # share of candidates that are random legal rows
    another_in_evolution: float = 0.05  # as `another_of_sketch`, in standard deviations of the best scores

    descent_share: float = 0.2  # share of coordinate descent, at the end of the search
    descent_centres: int = 3  # best candidates that it starts from
    hopeless: int = 4  # failures without a success, after which a sketch is given up

    def round_size(self, round: int, trials: int) -> int:
        """Return the number of candidates of a round in a search of `trials`."""
        low, high = self.batch
        return self.first_batch if round == 0 else min(max(trials // 8, low), high)


FULL = Policy()
# For kernels of processors that are not tuned: few random rows, and a longer descent from the best ones. Over 113
# kernels of seven networks the analytic latency is 1.0016 times that of `FULL` in the geometric mean (1.06 at most),
# in 0.42 of the time.
QUICK = Policy(
    draft_rows=4096, draft_per_sketch=256, elite=64, draft_generations=0, draft_descents=10, draft_descended=32
)


@dataclass(frozen=True)
class SearchSetup:
    """Setup of a search, for experiments and for searches without a device; the defaults are those of `tune`.

    `narrow`: selects the sketches that are searched. `measure` False: the cost model alone decides, for any processor
    or GPU, and nothing runs or is recorded; with `simulate` its best candidates for CUDA are verified in the simulator,
    and wrong ones are left out. `started`: start of the command on `time.monotonic`; None is now. Raises UsageError for
    values of other types.
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
    """Check the types of arguments of `tune` before the search begins. Raises UsageError."""

    def are(objects: object, *methods: str) -> bool:
        return isinstance(objects, Sequence) and all(callable(getattr(x, m, None)) for x in objects for m in methods)

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
