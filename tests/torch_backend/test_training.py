"""Training by torch.compile: gradients, the state of batch norms and steps of descent are those of torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from autosched.torch_backend.backend import backend  # noqa: E402
from autosched.torch_backend.partition import CompiledGraphs  # noqa: E402
from tests.executor.interpreted import Compilations, compilations  # noqa: E402
from tests.graph.torch_models import model  # noqa: E402


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    yield from compilations(monkeypatch)


def one_step(function: Any, module: nn.Module, inputs: Any) -> list[Any]:
    """The loss, gradients, and what the module is after a step of descent."""
    descent = torch.optim.SGD(module.parameters(), lr=0.1)
    made = function(*inputs)
    loss = sum((y.float() ** 2).mean() for y in (made if isinstance(made, tuple) else (made,)))
    for x in inputs:
        x.grad = None
    loss.backward()
    gradients = [x.grad.clone() for x in (*module.parameters(), *inputs) if x.grad is not None]
    descent.step()
    descent.zero_grad()
    return [loss.detach(), *gradients, *(x.detach().clone() for x in module.state_dict().values())]


def assert_trains_alike(module: nn.Module, inputs: Any, steps: int = 2) -> None:
    expected = copy.deepcopy(module)
    fast = torch.compile(module, backend=backend)
    for _ in range(steps):
        for got, wanted in zip(one_step(fast, module, inputs), one_step(expected, expected, inputs), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["resnet", "bert", "unet", "llama"])
def test_models_train(compiled, name):
    module, inputs = model(name)
    assert_trains_alike(module.train(), inputs)
    assert len(compiled) == 2  # forward and backward, each one program


CONVOLUTIONS = {
    "strides leave a rest": (nn.Conv2d(2, 3, 3, stride=2), (2, 2, 8, 9)),
    "groups and dilation": (nn.Conv2d(4, 6, (3, 1), padding=(2, 0), dilation=2, groups=2), (1, 4, 7, 6)),
    "depthwise": (nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False), (2, 3, 5, 5)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 2, 4, 5)),
    "transposed with groups": (nn.ConvTranspose2d(4, 2, 2, stride=3, groups=2), (1, 4, 3, 2)),
    "one dimension": (nn.Conv1d(2, 3, 4, stride=3, padding=2), (3, 2, 11)),
    "three dimensions": (nn.Conv3d(1, 2, (1, 2, 3)), (1, 1, 2, 3, 4)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_gradients(compiled, name):
    module, shape = CONVOLUTIONS[name]
    assert_trains_alike(copy.deepcopy(module), [torch.randn(shape, requires_grad=True)], steps=1)
    assert len(compiled) == 2


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        x = x * self.scale
        a = F.max_pool2d(x, 3, 2, 1)
        return a, F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.interpolate(a, scale_factor=2)


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.norm = nn.Linear(8, 8), nn.RMSNorm(8)

    def forward(self, x, bias):
        q = self.query(self.norm(x)).view(2, 5, 2, 4).transpose(1, 2)
        k = x.view(2, 5, 2, 4).transpose(1, 2)
        mask = None if self.causal else bias
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask, is_causal=self.causal)


class SharedKeys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, q, k):
        return F.scaled_dot_product_attention(q * self.scale, k, k, enable_gqa=True)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 6), nn.GroupNorm(2, 6)

    def forward(self, ids, wanted):
        return F.cross_entropy(self.norm(self.table(ids)), wanted)


OTHERS = {
    "pools": lambda: (Pools(), [torch.randn(2, 3, 8, 6, requires_grad=True)]),
    "causal attention": lambda: (Attention(True), [torch.randn(2, 5, 8, requires_grad=True), torch.zeros(5, 5)]),
    "attention with shared keys": lambda: (
        SharedKeys(),
        [torch.randn(2, 4, 5, 3, requires_grad=True), torch.randn(2, 2, 5, 3, requires_grad=True)],
    ),
    "masked attention": lambda: (Attention(False), [torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 1, 5, 5)]),
    "cross entropy": lambda: (Loss(), [torch.tensor([3, 0, 3, 10]), torch.tensor([0, 5, 2, 2])]),
    "gelu and softmax": lambda: (
        nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Softmax(1), nn.LayerNorm(7, elementwise_affine=False)),
        [torch.randn(3, 5, requires_grad=True)],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_operators(compiled, name):
    torch.manual_seed(3)
    assert_trains_alike(*OTHERS[name](), steps=1)
    assert len(compiled) == 2


def test_dropout_stays_with_torch(compiled):
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6))
    fast, x = torch.compile(module, backend=backend), torch.randn(4, 6)
    results = []
    for function in (fast, module):
        torch.manual_seed(1)
        results.append(one_step(function, module, [x])[0])
        torch.manual_seed(1)
        for p in module.parameters():
            nn.init.constant_(p, 0.1)
    assert len(compiled) >= 3
    assert results[0] != 0.0


def test_sizes_that_vary_train(compiled):
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    expected = copy.deepcopy(module)
    fast = torch.compile(module, backend=backend, dynamic=True)
    for rows in (2, 3, 2):
        x = torch.randn(rows, 4)
        for got, wanted in zip(one_step(fast, module, [x]), one_step(expected, expected, [x]), strict=True):
            torch.testing.assert_close(got, wanted)
    assert len(compiled) == 4


def test_views_of_arguments_that_are_kept_for_the_backward_pass_are_not_copied(compiled, monkeypatch):
    made: list[Any] = []
    partitioned = CompiledGraphs.partition
    monkeypatch.setattr(CompiledGraphs, "partition", lambda *a: made.append(partitioned(*a)) or made[-1])
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module(torch.randn(2, 4))
    torch.compile(module, backend=backend)(torch.randn(2, 4)).sum().backward()
    forward = made[0]
    (end,) = forward.graph.find_nodes(op="output")
    turned = [node for node in end.all_input_nodes if str(node.target) == "aten.permute.default"]
    assert all(node.args[0].op == "placeholder" for node in turned)
    assert "permute" not in str([n.target for n in end.all_input_nodes if n.op == "call_module"])
