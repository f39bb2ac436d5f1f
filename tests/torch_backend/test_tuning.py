"""The options of torch.compile that ask for measurements. The search is a stand-in; it has tests of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autosched.errors import AutoschedError, RecordWarning  # noqa: E402
from autosched.network_tuning import background, tune  # noqa: E402
from autosched.network_tuning.results import Effort  # noqa: E402
from autosched.torch_backend import subgraph  # noqa: E402
from autosched.torch_backend.backend import backend  # noqa: E402
from tests.executor.interpreted import Compilations, InterpretedModel, compilations  # noqa: E402
from tests.graph.torch_models import assert_close  # noqa: E402


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    yield from compilations(monkeypatch)


@dataclass(frozen=True)
class Found:
    model: InterpretedModel


class Searches(list[tuple[InterpretedModel, float]]):
    """Models and budgets of the searches; each waits for `may_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def tune_network(self, model: InterpretedModel, effort: Effort) -> Found:
        assert effort.budget_s is not None
        self.append((model, effort.budget_s))
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return Found(replace(model, tasks=model.tasks[:0]))


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    found = Searches()
    monkeypatch.setattr(tune, "tune_network", found.tune_network)
    monkeypatch.setattr(background, "tune_in_process", background.tune_here)  # another process knows of no stand-in
    return found


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a faster model is in use."""
    done, swap = threading.Event(), subgraph.Subgraph._replace

    def replace_and_tell(*arguments):
        swap(*arguments)
        done.set()

    monkeypatch.setattr(subgraph.Subgraph, "_replace", replace_and_tell)
    return done


def test_now_measures_before_the_first_call(compiled, searches):
    searches.may_end.set()
    x = torch.randn(3)
    fast = torch.compile(lambda a: torch.relu(a) + 1.0, backend=backend, options={"tune": "now", "budget_s": 5})
    with torch.no_grad():
        for _ in range(2):
            assert_close([fast(x).numpy()], torch.relu(x) + 1.0)
    assert [budget for _, budget in searches] == [5.0]


def test_background_goes_over_to_the_faster_program(compiled, searches, replaced):
    module, x = nn.Linear(4, 3), torch.randn(2, 4)
    fast = torch.compile(module, backend=backend, options={"tune": "background"})
    with torch.no_grad():
        assert_close([fast(x).numpy()], module(x))
        module.weight.mul_(2.0)  # while the search runs
        assert_close([fast(x).numpy()], module(x))
        searches.may_end.set()
        assert replaced.wait(10)
        assert_close([fast(x).numpy()], module(x))
        module.weight.mul_(2.0)
        assert_close([fast(x).numpy()], module(x))
    assert (len(compiled), len(searches), len(compiled.packings)) == (1, 1, 3)


def test_a_search_that_fails_is_a_warning(searches):
    searches.may_end.set()
    searches.error = AutoschedError("the device is lost")
    model = InterpretedModel(None, [])  # type: ignore[arg-type]  # nobody looks at its graph
    told = threading.Event()

    def wait() -> None:
        background.enqueue_tuning(model, 1.0, lambda _: None)  # type: ignore[arg-type]
        background.enqueue(told.set)
        assert told.wait(10)

    with pytest.warns(RecordWarning, match="runs as it was: the device is lost"):
        wait()


def test_the_budget_is_for_a_graph_of_several_parts(compiled, searches):
    searches.may_end.set()
    options = {"tune": "now", "budget_s": 6.0}
    fast = torch.compile(lambda a: torch.sort(torch.relu(a))[0] * 2.0, backend=backend, options=options)
    with torch.no_grad():
        fast(torch.randn(5))
    assert [budget for _, budget in searches] == [3.0, 3.0]
