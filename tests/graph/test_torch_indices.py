"""Constant indices of torch's operators that are out of range: an error when the module is imported."""

from __future__ import annotations

from typing import Any

import pytest

from autosched.errors import GraphError

torch = pytest.importorskip("torch")

from autosched.graph.torch.load import load_torch  # noqa: E402

ARANGE = torch.arange(5.0)
PLAIN: dict[str, Any] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[:, None]),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
}


class Applied(torch.nn.Module):
    def __init__(self, function: Any, index: Any = None) -> None:
        super().__init__()
        self.function, self.index = function, index

    def forward(self, x: Any, *index: Any) -> Any:
        return self.function(x, *(index or (self.index,)))


@pytest.mark.parametrize(("name", "index"), [*((name, -1) for name in PLAIN), ("embedding", 5)])
def test_torch_counts_from_the_end_in_subscripts_alone(name, index):
    with pytest.raises(GraphError, match=rf"aten\.\w+.*: the index {index} is out of range, which is 0 to 4"):
        load_torch(Applied(PLAIN[name], torch.tensor([index])), [ARANGE])


def test_subscripts_count_from_the_end():
    with pytest.raises(GraphError, match=r"the index -6 is out of range, which is -5 to 4"):
        load_torch(Applied(lambda x, i: x[i], torch.tensor([-5, 4, -6])), [ARANGE])
