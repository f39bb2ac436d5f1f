"""Recurrent networks of torch: loops, with the results of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.loops import loop_of  # noqa: E402
from autosched.graph.torch.load import AnyShapes, load_torch  # noqa: E402

CASES: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "two layers, both directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}),
    "projected states": (nn.LSTM, {"proj_size": 3, "num_layers": 2}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "no biases": (nn.GRU, {"bias": False, "batch_first": True, "num_layers": 2}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "batch_first": True}),
}
WIDTH, HIDDEN, BATCH = 5, 7, 3


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, words = CASES[name]
    return kind(WIDTH, HIDDEN, **words).eval()


def input_of(name: str, steps: int) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(steps, BATCH, WIDTH)
    return x.transpose(0, 1).contiguous() if CASES[name][1].get("batch_first") else x


def expected_of(module: nn.Module, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    with torch.no_grad():
        every, last = module(*inputs)
    return [x.numpy() for x in (every, *(last if isinstance(last, tuple) else (last,)))]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name: str) -> None:
    module = module_of(name)
    for steps in (1, 3, 9):
        x = input_of(name, steps)
        graph = load_torch(module, (x,))
        assert {loop_of(node).steps for node in graph.nodes if node.body is not None} == {steps}
        network = compile_graph(graph, threads=1)
        results = interpret(graph, {graph.inputs[0]: x.numpy()}).values()
        for got, other, want in zip(network(x), results, expected_of(module, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(other, want, rtol=1e-5, atol=1e-6)


def test_given_states() -> None:
    module = module_of("two layers, both directions")
    x, states = input_of("lstm", 6), (torch.randn(4, BATCH, HIDDEN), torch.randn(4, BATCH, HIDDEN))

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
            return self.inner(x, (h, c))

    network = compile_graph(load_torch(Given().eval(), (x, *states)), threads=1)
    for got, want in zip(network(x, *states), expected_of(module, x, states), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_number_of_nodes_does_not_depend_on_the_steps() -> None:
    module = module_of("gru")
    counts = {len(load_torch(module, (input_of("gru", steps),)).nodes) for steps in (5, 200)}
    assert len(counts) == 1


def test_any_number_of_steps() -> None:
    module = module_of("gru")
    shapes = AnyShapes(module, (input_of("gru", 4),))
    for steps in (4, 7):
        x = input_of("gru", steps)
        graph = shapes.graph([tuple(x.shape)])
        for got, want in zip(
            interpret(graph, {graph.inputs[0]: x.numpy()}).values(), expected_of(module, x), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_dropout_while_training_is_refused() -> None:
    with pytest.raises(GraphError, match=r"has dropout 0.5: call eval\(\)"):
        load_torch(module_of("two layers, both directions").train(), (input_of("lstm", 4),))


def test_images_before_a_loop_have_their_channels_last() -> None:
    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, (4, 3)), nn.ReLU())
            self.state = nn.GRU(16, 8, bidirectional=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.state(self.image(x).squeeze(2).permute(2, 0, 1))

    module, x = Recogniser().eval(), torch.randn(2, 3, 4, 11)
    network = compile_graph(load_torch(module, (x,)), threads=1)
    assert len(network.program.loops) == 2
    for got, want in zip(network(x), expected_of(module, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
