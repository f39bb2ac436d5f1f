"""The backend of torch.compile. What compiles a graph is a stand-in that interprets it, so that values are those of the
reference."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from autosched.errors import UsageError  # noqa: E402
from autosched.graph.graph import Graph  # noqa: E402
from autosched.network import model as network  # noqa: E402
from autosched.network.dynamo import backend, read_options, warn_once  # noqa: E402  # noqa: E402
from tests.graph.torch_models import MODELS, assert_close, by_reference, loaded, model  # noqa: E402

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


class Compilations(list[Graph]):
    """The graphs that were compiled, and the threads of the last."""

    threads: int | None = None


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    found = Compilations()

    def compile_graph(graph: Graph, target: str | None = "cpu", threads: int | None = None) -> Any:
        found.append(graph)
        found.threads = threads
        return lambda *tensors: tuple(torch.from_numpy(y.copy()) for y in by_reference(graph, tensors))

    monkeypatch.setattr(network, "compile_graph", compile_graph)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def values(result: Any) -> list[Any]:
    return [y.numpy() for y in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_one_graph_with_the_values_of_torch(compiled, name):
    loaded(*model(name))  # skips where operators are missing
    module, inputs = model(name)
    with torch.no_grad():
        made = torch.compile(module, backend=backend)(*inputs)
        assert_close(values(made), module(*inputs))
    assert len(compiled) == 1
    assert len(compiled[0].inputs) == len(inputs)


class Mixed(nn.Module):
    """Sorting in the middle is torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        y = torch.relu(x + self.weight)
        z = torch.sort(y, 1)[0]
        return torch.relu(z + self.weight) + 1.0, y.t()


def test_what_has_no_operator_stays_with_torch(compiled):
    module, x = Mixed(), torch.randn(4, 4)
    with torch.no_grad():
        made, turned = torch.compile(module, backend=backend)(x)
        assert_close([made.numpy(), turned.numpy()], module(x))
        assert turned.stride() == module(x)[1].stride()
    assert len(compiled) == 2


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.randn(4)), nn.Buffer(torch.randn(4))

    def forward(self, x):
        return torch.relu(x + self.gain) + self.bias


def test_weights_are_constants_and_changes_are_noticed(compiled):
    module, x = Gain(), torch.randn(3, 4)
    fast = torch.compile(module, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            assert_close(values(fast(x)), module(x))
        assert len(compiled) == 1
        assert (len(compiled[0].inputs), len(compiled[0].constants)) == (1, 2)

        module.load_state_dict(Gain().state_dict())
        assert_close(values(fast(x)), module(x))
        assert len(compiled) == 2

        module.bias.mul_(2.0)
        assert_close(values(fast(x)), module(x))
        module.gain.data = torch.ones(4)
        assert_close(values(fast(x)), module(x))
        assert len(compiled) == 4


def test_weights_of_inference_mode_are_inputs(compiled):
    with torch.inference_mode():
        module, x = Gain(), torch.randn(3, 4)
        assert_close(values(torch.compile(module, backend=backend)(x)), module(x))
    assert [len(graph.constants) for graph in compiled] == [0]


def test_without_freezing_weights_are_inputs(compiled):
    module, x = Gain(), torch.randn(3, 4)
    with torch.no_grad():
        assert_close(values(torch.compile(module, backend=backend, options={"freeze": False})(x)), module(x))
    assert [len(graph.inputs) for graph in compiled] == [3]


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4))

    def forward(self, x):
        self.rows.add_(x)
        return torch.relu(self.rows + x)


def test_buffers_that_change_are_no_constants(compiled):
    module, expected, x = Cache(), Cache(), torch.randn(4)
    fast = torch.compile(module, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            assert_close(values(fast(x)), expected(x))
    assert_close([module.rows.numpy()], expected.rows)
    assert len(compiled) == 1


def test_gradients_are_left_to_torch_with_one_warning(compiled):
    warn_once.cache_clear()
    module, x = Gain(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="compiles for inference only"):
        torch.compile(module, backend=backend)(x).sum().backward()
    assert module.gain.grad is not None
    with warnings.catch_warnings(record=True) as others:
        torch.compile(Gain(), backend=backend)(x)
    assert not [w for w in others if "autosched" in str(w.message)]
    assert compiled == []


def test_sizes_that_vary_are_left_to_torch_with_a_warning(compiled):
    warn_once.cache_clear()
    module = Gain()
    fast = torch.compile(module, backend=backend, dynamic=True)
    x = torch.randn(2, 4)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="dynamic=False"):
            fast(x)
        for rows in (x, torch.randn(5, 4)):
            assert_close(values(fast(rows)), module(rows))
    assert compiled == []


def test_strided_inputs_are_read_in_order(compiled):
    x = torch.randn(4, 3).t()
    with torch.no_grad():
        made = torch.compile(lambda a: torch.relu(a + 1.0), backend=backend)(x)
    assert_close(values(made), F.relu(x + 1.0))
    assert len(compiled) == 1


def test_options_arrive(compiled):
    with torch.no_grad():
        torch.compile(Gain(), backend=backend, options={"threads": 2, "freeze": False})(torch.randn(2, 4))
    assert compiled.threads == 2
    assert not read_options(None, {"freeze": False}).freeze


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        (None, {"thread": 2}, "has no option 'thread', only threads, freeze"),
        (None, {"threads": "2"}, "the option threads of the backend autosched is of type int, not '2'"),
        (None, {"threads": True}, "is of type int, not True"),
        ("reduce-overhead", {}, "has no mode 'reduce-overhead', only default"),
    ],
)
def test_options_that_there_are_not(mode, options, words):
    with pytest.raises(UsageError, match=words):
        read_options(mode, options)


def test_the_entry_point_is_there():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    groups = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    module, _, name = groups["torch_dynamo_backends"]["autosched"].partition(":")
    assert getattr(import_module(module), name) is backend
