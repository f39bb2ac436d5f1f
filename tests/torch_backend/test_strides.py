"""Operators that address the storage below a view, compiled by torch's backend: they read what eager PyTorch reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from autosched.torch_backend.backend import backend  # noqa: E402
from tests.executor.interpreted import Compilations, compilations  # noqa: E402


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    yield from compilations(monkeypatch)


def windows(x):
    """Windows that overlap, of the columns in the middle."""
    y = (x * 2).view(2, 3, 6)[:, :, 1:5]
    outer, middle, inner = y.stride()
    return y.as_strided((2, 5, 2), (outer, middle // 2, inner)) + 1


VIEWS = {
    "rows": lambda x: (x * 2)[1:],
    "columns": lambda x: (x * 2)[:, 1:4],
    "every other column": lambda x: (x * 2)[:, ::2],
    "one column": lambda x: (x * 2)[:, 2],
    "permuted": lambda x: (x * 2).view(2, 3, 6).permute(2, 0, 1),
    "of a transposed result": lambda x: (x.t() * 2)[:, ::2],
    "diagonal": lambda x: (x * 2).diagonal(),
    "one of several": lambda x: (x * 2).split(2, 1)[1],
    "one of several results": lambda x: torch.var_mean(torch.cat([x, x]), 1)[1][::2],
    "expanded": lambda x: (x[:1] * 2).expand(4, 6),
    "of an argument that is read too": lambda x: x[:, ::2],
    "of itself": lambda x: torch.as_strided(x * 2, (3, 3), (12, 2), 1),
    "of what torch computes": lambda x: torch.lgamma((x * 2 + 1).t()[::2]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_as_strided_reads_the_storage_below_a_view(compiled, name):
    def strided(x):
        view = VIEWS[name](x)
        return torch.as_strided(view, (2, 3), (2, 1)), torch.as_strided(view, (2, 2), (2, 1), 1), view + 1

    x = torch.randn(6, 6)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(strided, backend=backend)(x), strided(x))
    assert len(compiled) > 0


OTHERS = {
    "windows": windows,
    "copied": lambda x: torch.as_strided_copy((x * 2)[:, ::2], (3, 2), (6, 1)) + 1,
    "scattered": lambda x: torch.as_strided_scatter((x * 2)[:, ::2], torch.ones(3, 2), (3, 2), (6, 1)) + 1,
}


@pytest.mark.parametrize("name", OTHERS)
def test_its_relatives_read_the_storage_too(compiled, name):
    x = torch.arange(36.0).view(6, 6)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(OTHERS[name], backend=backend)(x), OTHERS[name](x))
    assert len(compiled) > 0


def test_sizes_that_vary(compiled):
    def strided(x):
        return (x * 2)[:, ::2].as_strided((3, 2), (x.shape[1], 1)) + 1

    x = torch.randn(4, 6)
    with torch.no_grad():
        made = torch.compile(strided, backend=backend, dynamic=True)
        torch.testing.assert_close(made(x), strided(x))
        torch.testing.assert_close(made(torch.cat([x, x])), strided(torch.cat([x, x])))


def test_gradients(compiled):
    def strided(x):
        return (torch.as_strided((x * x)[:, ::2], (3, 2), (6, 1)) ** 2).sum()

    x = torch.randn(6, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(strided(x), x)
    (made,) = torch.autograd.grad(torch.compile(strided, backend=backend)(x), x)
    torch.testing.assert_close(made, expected)
