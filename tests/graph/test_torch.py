"""Modules of PyTorch as graphs: structure, values, and what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from autosched.errors import GraphError  # noqa: E402
from autosched.graph.torch.load import can_load, load_fx, load_torch  # noqa: E402
from tests.graph.torch_models import MODELS, assert_close, by_reference, loaded, model  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_torch(name):
    module, inputs = model(name)
    graph = loaded(module, inputs)
    with torch.no_grad():
        assert_close(by_reference(graph, inputs), module(*inputs))


COMPOSITES = {
    "resnet": {"conv": 4, "batch_norm": 4, "relu": 3, "max_pool": 1, "reduce_mean": 1, "linear": 1},
    "mobilenet": {"conv": 5, "batch_norm": 3, "clip": 2, "silu": 1, "sigmoid": 1},
    "bert": {"linear": 7, "layer_norm": 3, "attention": 1, "gelu": 1, "gather": 1},
    "dcgan": {"conv_transpose": 3, "batch_norm": 2, "leaky_relu": 1, "tanh": 1},
    "unet": {"conv": 4, "group_norm": 1, "silu": 1, "concat": 1, "resize": 1, "conv_transpose": 1},
    "llama": {"linear": 7, "rms_norm": 1, "attention": 1, "silu": 1, "trilu": 0},
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_stay_whole(name):
    graph = loaded(*model(name))
    counts = Counter(node.operator for node in graph.nodes)
    assert {key: counts[key] for key in COMPOSITES[name]} == COMPOSITES[name]


def test_parameters_are_constants_in_their_own_memory():
    module, inputs = model("resnet")
    graph = loaded(module, inputs)
    weight = module.fc.weight.detach().numpy()
    assert np.shares_memory(graph.constants["fc.weight"], weight)
    assert set(graph.constants) <= set(module.state_dict())
    assert graph.inputs == ("x",)


def test_bfloat16_is_in_its_own_memory_too():
    module = nn.Linear(4, 4, dtype=torch.bfloat16)
    graph = loaded(nn.Sequential(module, nn.ReLU()), (torch.randn(2, 4, dtype=torch.bfloat16),))
    array = graph.constants["0.weight"]
    assert array.dtype.name == "bfloat16"
    assert array.ctypes.data == module.weight.data_ptr()


def test_what_depends_on_no_input_is_computed_by_torch():
    graph = loaded(*model("llama"))
    (mask,) = [array for name, array in graph.constants.items() if name.startswith("computed") and array.ndim == 2]
    np.testing.assert_array_equal(mask, np.triu(np.full((6, 6), -np.inf, np.float32), 1))


class Sorting(nn.Module):
    def forward(self, x):
        return torch.sort(x)[0].sum() + torch.sort(-x)[0].sum() + torch.lgamma(x).sum()


def test_all_operators_without_a_rule_are_named_at_once():
    with pytest.raises(
        GraphError, match=r"Sorting has operators .*: aten\.lgamma\.default; aten\.sort\.default \(2\)$"
    ):
        loaded(Sorting(), (torch.randn(3, 4),))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def test_a_module_that_changes_itself_is_refused():
    with pytest.raises(GraphError, match="the module Counting changes calls"):
        load_torch(Counting(), (torch.randn(3),))


class Deciding(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def test_what_torch_cannot_trace_is_one_sentence():
    with pytest.raises(GraphError, match=r"^torch\.export cannot trace Deciding: .+$") as caught:
        load_torch(Deciding(), (torch.randn(3),))
    assert "\n" not in str(caught.value)


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.relu(x + self.weight) + self.bias


def test_which_arguments_of_an_fx_graph_are_constants():
    module, x = Tail(), torch.randn(3, 4)
    traced = make_fx(lambda w, x, b: torch.relu(x + w) + b)(module.weight.detach(), x, module.bias.detach())
    weight, bias = module.weight.detach(), module.bias.detach()
    every = load_fx(traced, (weight, x, bias))
    assert (len(every.inputs), len(every.constants)) == (3, 0)
    graph = load_fx(traced, (weight, x, bias), {0: weight, 2: bias})
    assert (len(graph.inputs), len(graph.constants)) == (1, 2)
    assert_close(by_reference(every, (weight, x, bias)), module(x))
    assert_close(by_reference(graph, (x,)), module(x))


def test_which_nodes_can_be_loaded():
    traced = make_fx(lambda x: (torch.relu(x), *torch.sort(x), torch.rand(3), torch.zeros(3)), tracing_mode="fake")(
        torch.randn(3)
    )
    found = {str(node.target): can_load(node) for node in traced.graph.nodes if node.op == "call_function"}
    assert found == {
        "aten.relu.default": True,
        "aten.sort.default": False,
        "<built-in function getitem>": False,
        "aten.rand.default": False,
        "aten.zeros.default": True,
    }


def test_training_is_refused():
    with pytest.raises(GraphError, match=r"training mode: call eval\(\) of the module"):
        loaded(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train(), (torch.randn(2, 3),))


def test_types_that_there_are_not():
    with pytest.raises(GraphError, match=r"the type torch\.complex64 is not one of bool, "):
        load_torch(nn.ReLU(), (torch.randn(3, dtype=torch.complex64),))
