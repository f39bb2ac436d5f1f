"""Graphs of torch.compile with sizes that vary: compiled once, for all sizes that pass the guards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autosched.torch_backend import partition, subgraph  # noqa: E402
from autosched.torch_backend.backend import backend  # noqa: E402
from autosched.torch_backend.options import warn_once  # noqa: E402
from autosched.torch_backend.sized_graph import SizedGraph  # noqa: E402


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SizedGraph]]:
    """The traces of dynamic graphs; certain sizes are not compiled, but for the graphs that torch makes for them."""
    made: list[SizedGraph] = []

    class Kept(SizedGraph):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(partition, "SizedGraph", Kept)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a program for certain sizes")

    monkeypatch.setattr(subgraph, "compile_network", refuse)


class Step(nn.Module):
    """A step of a transformer over a cache of keys and values that grows, with a mask of positions."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.embedding, self.positions = nn.Embedding(50, width), nn.Embedding(256, width)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, 50), nn.LayerNorm(width)

    def forward(self, ids, keys, values):
        batch, n = ids.shape
        past = keys.shape[2]
        x = self.embedding(ids) + self.positions(torch.arange(past, past + n))
        split = self.qkv(self.norm(x)).reshape(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = split
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        rows, columns = torch.arange(past, past + n)[:, None], torch.arange(past + n)
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        scores = scores + torch.where(columns <= rows, 0.0, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, n, self.width)
        return self.out(x + y), k, v


def test_a_cache_that_grows(traces, no_programs):
    module = Step().eval()
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad():
        for n in (5, 9):
            ids = torch.randint(0, 50, (1, n))
            ours = theirs = (torch.empty(0), *(torch.randn(1, 2, 3, 8),) * 2)
            for _ in range(6):
                ours, theirs = fast(ids, *ours[1:]), module(ids, *theirs[1:])
                for a, b in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
                ids = theirs[0][:, -1:].argmax(-1)
    assert len(traces) <= 3


def test_weights_that_change_are_packed_again(traces):
    module = nn.Linear(7, 5)
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4, 6):
            x = torch.randn(rows, 7)
            torch.testing.assert_close(fast(x), module(x))
            module.weight.mul_(1.5)
            torch.testing.assert_close(fast(x), module(x))
    assert len(traces) == 4, "the first, and one after each change"


def test_nodes_that_torch_runs_have_the_sizes_of_the_call(traces, no_programs):
    def function(x, y):
        sorted_, _ = torch.sort(x * 2, 1)
        return sorted_.reshape(-1, x.shape[0])[:, :2] + x.shape[1], y[: x.shape[0]] + 1, x.shape[0] * 2

    fast = torch.compile(function, backend=backend, dynamic=True)
    for rows, columns in ((4, 6), (5, 7), (9, 3)):
        x, y = torch.randn(rows, columns), torch.randn(11, 3)
        for a, b in zip(fast(x, y), function(x, y), strict=True):
            torch.testing.assert_close(a, b)
    assert len(traces) <= 2


def test_channels_last_images(traces, no_programs):
    conv = nn.Conv2d(3, 4, 3, padding=1).eval()
    fast = torch.compile(lambda x: conv(x).relu(), backend=backend, dynamic=True)
    with torch.no_grad():
        for rows, columns in ((8, 9), (12, 7), (10, 10)):
            x = torch.randn(2, 3, rows, columns).to(memory_format=torch.channels_last)
            made, expected = fast(x), conv(x).relu()
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
            assert made.stride() == expected.stride()


def test_training_over_sizes_that_vary(traces, no_programs):
    module, expected = (nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
    expected.load_state_dict(module.state_dict())
    fast = torch.compile(module, backend=backend, dynamic=True)
    for rows in (3, 2, 5, 7):
        x = torch.randn(rows, 4)
        for net, call in ((module, fast), (expected, expected)):
            net.zero_grad()
            (call(x) ** 2).sum().backward()
        for a, b in zip(module.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
            for parameter in (a, b):
                with torch.no_grad():
                    parameter.sub_(0.1 * parameter.grad)


def test_a_graph_that_cannot_be_traced_has_a_program_for_each_choice_of_sizes(monkeypatch):
    def fails(*_: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(partition, "SizedGraph", fails)
    warn_once.cache_clear()
    torch._dynamo.reset()
    fast = torch.compile(lambda x: torch.relu(x) + 1, backend=backend, dynamic=True)
    with pytest.warns(UserWarning, match="could not for all: a bug"):
        fast(torch.randn(3, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(fast(x), torch.relu(x) + 1)
    torch._dynamo.reset()
