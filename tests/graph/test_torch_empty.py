"""Torch modules with empty batches and other sizes of 0, compared with torch: the reference and compiled networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.executor.compile_graph import compile_graph
from autosched.graph.interpret import interpret

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from autosched.graph.torch.load import load_torch  # noqa: E402


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x)


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


r = torch.randn
MODULES: Mapping[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)), (r(0, 3),)),
    "convolutions": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)), (r(0, 3, 9, 9),)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), (r(0, 3, 5, 5),)),
    "no features": (nn.Linear(0, 4), (r(2, 0),)),
    "multi-head attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (r(0, 5, 8),)),
    "no keys": (Function(functional.scaled_dot_product_attention), (r(1, 2, 3, 4), r(1, 2, 0, 4), r(1, 2, 0, 4))),
    "vectors without elements": (
        Function(functional.scaled_dot_product_attention), (r(1, 2, 3, 0), r(1, 2, 2, 0), r(1, 2, 2, 4)),
    ),
    "recurrence": (nn.LSTM(3, 4, batch_first=True), (r(0, 5, 3),)),
    "embedding": (nn.Embedding(5, 3), (integers(0, 2),)),
    "concatenation": (Function(lambda a, b: torch.cat([a, b], 1) * 2), (r(2, 0), r(2, 3))),
    "reductions": (Function(lambda a: (a.sum(1), a.prod(1), a.mean(0), a.mean(1), a.any(1), a.all(1))), (r(2, 0),)),
    "product": (Function(lambda a, b: a @ b + 1), (r(2, 0), r(0, 3))),
    "slices": (Function(lambda a: (a[2:2], a[:, 1:] * 2, a[:0].sum())), (r(3, 4),)),
    "split": (Function(lambda a: torch.split(a, [2, 0, 1], 1)), (r(2, 3),)),
    "split, one part unread": (Function(lambda a: torch.split(a, [2, 0, 1], 1)[2] + 1), (r(2, 3),)),
    "rows": (Function(lambda a: (torch.ones(1), *torch.unbind(a))), (r(0, 4),)),
    "index": (Function(lambda a, i: a[i]), (r(3, 4), integers(0))),
    "no greatest": (Function(lambda a: tuple(torch.topk(a, 0))), (r(3, 4),)),
    "pad": (Function(lambda a: functional.pad(a, (1, 2), value=3.0)), (r(2, 0),)),
    "scatter": (Function(lambda a, i, u: a.scatter(1, i, u)), (r(2, 3), integers(2, 0), r(2, 0))),
    "index_add": (Function(lambda a, i, u: a.index_add(0, i, u)), (r(2, 3), integers(0), r(0, 3))),
    "running sums": (Function(lambda a: a.cumsum(1)), (r(2, 0),)),
    "einsum": (Function(lambda a, b: torch.einsum("bij,bjk->bik", a, b)), (r(2, 3, 0), r(2, 0, 4))),
    "interpolation": (Function(lambda a: functional.interpolate(a, scale_factor=2, mode="bilinear")), (r(0, 3, 4, 4),)),
    "groups": (nn.GroupNorm(2, 4), (r(0, 4, 3),)),
    "best places of no rows": (Function(lambda a: a.argmax(1)), (r(0, 3),)),
}  # fmt: skip


def arrays(results: Any) -> list[np.ndarray]:
    """The tensors of nested tuples as arrays."""
    if isinstance(results, tuple | list):
        return [array for part in results for array in arrays(part)]
    return [results.numpy() if isinstance(results, torch.Tensor) else np.asarray(results)]


def check(got: Any, wanted: list[np.ndarray]) -> None:
    for one, other in zip(arrays(got), wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_as_torch_computes_it(name: str) -> None:
    module, given = MODULES[name]
    with torch.no_grad():
        wanted = arrays(module.eval()(*given))
    graph = load_torch(module, given)
    inputs = dict(zip(graph.inputs, (x.numpy() for x in given), strict=True))
    by_name = interpret(graph, inputs)
    check([by_name[output] for output in graph.outputs], wanted)
    check(compile_graph(graph)(*given), wanted)


@pytest.mark.parametrize(
    "name", ["perceptron", "concatenation", "reductions", "split", "split, one part unread", "scatter"]
)
def test_the_backend_of_torch_compile(name: str) -> None:
    module, given = MODULES[name]
    torch._dynamo.reset()
    with torch.no_grad():
        check(torch.compile(module.eval(), backend="autosched", fullgraph=True)(*given), arrays(module(*given)))


def test_sizes_that_vary() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    model = at.load_dynamic(module, (r(2, 3),), specialise="now")
    for rows in (2, 0, 3, 0):
        x = r(rows, 3)
        with torch.no_grad():
            check(model(x), arrays(module(x)))
    assert [sizes["x[0]" if "x[0]" in sizes else next(iter(sizes))] for sizes in model.sizes] == [2, 3, 0]
