"""The backend of torch.compile. What compiles a graph is a stand-in that interprets it, so that values are those of the
reference."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import autosched  # noqa: E402
from autosched.errors import AutoschedError, UsageError  # noqa: E402
from autosched.executor.cpu_model import CpuModel  # noqa: E402
from autosched.torch_backend import subgraph  # noqa: E402
from autosched.torch_backend.backend import backend  # noqa: E402
from autosched.torch_backend.options import read_options, warn_once  # noqa: E402
from tests.executor.interpreted import Compilations, compilations  # noqa: E402
from tests.graph.torch_models import MODELS, assert_close, loaded, model  # noqa: E402

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    yield from compilations(monkeypatch)


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
        module.bias.mul_(2.0)
        assert_close(values(fast(x)), module(x))
        module.gain.data = torch.ones(4)
        assert_close(values(fast(x)), module(x))
        module.gain = nn.Parameter(torch.randn(4))
        for _ in range(2):
            assert_close(values(fast(x)), module(x))
    assert (len(compiled), len(compiled.packings)) == (1, 4)


def test_layers_that_share_a_part_are_packed_once_each(compiled, monkeypatch):
    """torch has one graph for both after a break, which gets the weights of either."""
    torch.manual_seed(0)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            torch._dynamo.graph_break()
            return torch.relu(self.linear(x))

    module = nn.Sequential(Layer(), Layer(), Layer()).eval()
    fast, x = torch.compile(module, backend=backend), torch.randn(3, 5)
    with torch.no_grad():
        for _ in range(2):
            assert_close(values(fast(x)), module(x))
        module[1].linear.weight.mul_(2.0)
        assert_close(values(fast(x)), module(x))
        monkeypatch.setattr("autosched.torch_backend.subgraph.Subgraph._repack", lambda *_: pytest.fail("packed again"))
        assert_close(values(fast(x)), module(x))


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
        (None, {"thread": 2}, "has no option 'thread'; did you mean threads"),
        (None, {"threads": "2"}, "the option threads of the backend autosched is a number of threads, .*, not '2'"),
        (None, {"threads": True}, "at least 1, not True"),
        (None, {"threads": 0}, "at least 1, not 0"),
        (None, {"tune": "later"}, "is one of none, background, now, not 'later'"),
        (None, {"budget_s": float("inf")}, "a number of seconds above 0, not inf"),
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


class Ends(nn.Module):
    """Outputs of all kinds."""

    def forward(self, x, y):
        z = x * y
        return x, z, z.t(), None, 3, z.sum(), (x > y, y.long()), x[:0], x.expand(2, *x.shape)


def test_outputs_of_all_kinds(compiled):
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    with torch.no_grad():
        got, wanted = torch.compile(Ends(), backend=backend)(x, y), Ends()(x, y)
    assert got[0] is x
    assert got[3:5] == (None, 3)
    flat = [*got[:3], got[5], *got[6], *got[7:]]
    expected = [*wanted[:3], wanted[5], *wanted[6], *wanted[7:]]
    assert_close([a.numpy() for a in flat], expected)
    assert [a.stride() for a in flat] == [a.stride() for a in expected]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_other_types(compiled, dtype):
    x = (torch.randn(3, 5) * 8).to(getattr(torch, dtype))
    with torch.no_grad():
        made = torch.compile(lambda a: (a + 2 * a, a > 1), backend=backend)(x)
    assert torch.equal(made[0], x + 2 * x)
    assert torch.equal(made[1], x > 1)
    assert len(compiled) == 1


def test_images_with_channels_last_stay_so_without_copies(compiled, monkeypatch):
    monkeypatch.setattr("autosched.torch_backend.subgraph._copy_with_strides", lambda *_: pytest.fail("a copy"))
    module = nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(2, 3, 7, 5).to(memory_format=torch.channels_last)
    with torch.no_grad():
        made, wanted = torch.compile(module, backend=backend)(x), module(x)
    assert_close([made.numpy()], wanted)
    assert made.stride() == wanted.stride()
    assert [compiled[0].values[name].shape for name in compiled[0].inputs] == [(2, 7, 5, 3)]


class Rows(nn.Module):
    """A cache of keys that a decoder writes to, some rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(6, 4))

    def forward(self, x, at):
        self.keys.index_copy_(0, at, x)
        return torch.softmax(x @ self.keys.t(), -1)


def test_a_cache_is_written_to(compiled):
    module, expected = Rows(), Rows()
    fast = torch.compile(module, backend=backend)
    with torch.no_grad():
        for n in range(3):
            x, at = torch.randn(2, 4), torch.tensor([2 * n, 2 * n + 1])
            assert_close(values(fast(x, at)), expected(x, at))
    assert torch.equal(module.keys, expected.keys)
    assert len(compiled) == 1


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_cache_is_written_to_where_it_is(monkeypatch, by_torch):
    """A program leaves new rows in the buffer; torch knows that it has changed, and copies what it computes itself."""
    torch._dynamo.reset()
    module, expected, made = Rows(), Rows(), []
    launch = CpuModel.launch
    monkeypatch.setattr(CpuModel, "launch", lambda self, addresses: (made.append(addresses), launch(self, addresses)))
    if by_torch:
        monkeypatch.setattr(subgraph.Subgraph, "prepare", lambda self, tensors: None)
    fast = torch.compile(module, backend=backend)
    with torch.no_grad():
        for n in range(3):
            x, at, before = torch.randn(2, 4), torch.tensor([2 * n, 2 * n + 1]), module.keys._version
            assert_close(values(fast(x, at)), expected(x, at))
            assert module.keys._version > before
    assert torch.equal(module.keys, expected.keys)
    assert [addresses.count(module.keys.data_ptr()) for addresses in made] == ([] if by_torch else [2, 2, 2])


def test_a_cache_that_is_read_elsewhere_too_is_copied_last(compiled):
    def function(cache, x):
        doubled = torch.sort(cache, 1)[0] + x  # torch sorts
        cache.add_(x)
        return doubled

    ours, theirs, x = torch.randn(3, 5), torch.empty(3, 5), torch.randn(3, 5)
    theirs.copy_(ours)
    with torch.no_grad():
        made = torch.compile(function, backend=backend)(ours, x)
        assert_close(values(made), function(theirs, x))
    assert torch.equal(ours, theirs)


def test_what_a_cache_without_elements_is_joined_with_is_one_program(compiled):
    x = torch.randn(2, 3)
    with torch.no_grad():
        made = torch.compile(lambda a: torch.cat([torch.zeros(0, 3), a * 2.0, a]) + 1.0, backend=backend)(x)
    assert_close(values(made), torch.cat([x * 2.0, x]) + 1.0)
    assert len(compiled) == 1


def test_pools_over_images_with_channels_last_are_in_one_program(compiled):
    """torch says other strides of what such a pool leaves; where that is a result, they are kept."""
    x = torch.randn(1, 5, 3, 4).to(memory_format=torch.channels_last)

    def function(a):
        pooled = nn.functional.adaptive_avg_pool2d(torch.relu(a), 1)
        return pooled, torch.flatten(pooled * 2.0, 1) + 1.0

    with torch.no_grad():
        made, wanted = torch.compile(function, backend=backend)(x), function(x)
    assert_close(values(made), wanted)
    assert made[0].stride() == wanted[0].stride()
    assert len(compiled) == 1


def test_arguments_that_are_changed_or_views_of_one_another(compiled):
    def function(a, b):
        b.mul_(2.0)
        return a + b, b.view(-1)

    base, other = torch.randn(4, 6), torch.randn(4, 6)
    copy = base.clone()
    fast = torch.compile(function, backend=backend)
    with torch.no_grad():
        for x, y in ((base, copy), (other, other.clone())):
            got, wanted = fast(x, x[:]), function(y, y[:])
            assert_close(values(got), wanted)
            assert torch.equal(x, y)


def test_sizes_that_vary_have_a_program_each(compiled):
    module = Gain()
    fast = torch.compile(module, backend=backend)
    with torch.no_grad():
        for rows in (2, 3, 5, 3, 7, 5):
            x = torch.randn(rows, 4)
            assert_close(values(fast(x)), module(x))
    assert [graph.values[graph.inputs[0]].shape[0] for graph in compiled] == [2, 3, 5, 7]
    assert compiled.packings == []


def test_other_sizes_take_schedules_over(monkeypatch):
    made = []

    def compiled(*arguments):
        made.append(compile_network(*arguments))
        return made[-1]

    compile_network = subgraph.compile_network
    monkeypatch.setattr(subgraph, "compile_network", compiled)
    monkeypatch.setattr("autosched.torch_backend.partition.MAX_TRACES", 0)
    torch._dynamo.reset()
    module = nn.Linear(11, 5)
    fast = torch.compile(module, backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (6, 7):
            x = torch.randn(rows, 11)
            torch.testing.assert_close(fast(x), module(x))
    (first,), (second,) = (model.tasks for model in made)
    assert first.kernel.name == first.kernel_spec.name
    assert second.kernel.name != second.kernel_spec.name
    assert second.kernel.schedule.steps == first.kernel.schedule.steps


def test_more_sizes_than_are_compiled_are_left_to_torch(compiled, monkeypatch):
    monkeypatch.setattr("autosched.torch_backend.partition.MAX_SIZES", 2)
    warn_once.cache_clear()
    fast = torch.compile(lambda x: torch.relu(x) + x.shape[0], backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3):
            fast(torch.randn(rows, 4))
        x = torch.randn(5, 4)
        with pytest.warns(UserWarning, match="bring inputs to fewer sizes"):
            assert_close(values(fast(x)), torch.relu(x) + 5)
    assert len(compiled) == 2


def test_several_threads_call_one_model(compiled):
    module, rows = Gain(), [torch.randn(3, 4) for _ in range(4)]
    fast, found = torch.compile(module, backend=backend), {}
    with torch.no_grad():
        fast(rows[0])

    def call(n: int) -> None:
        with torch.no_grad():
            found[n] = fast(rows[n])

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for n, x in enumerate(rows):
            assert_close(values(found[n]), module(x))
    assert len(compiled) == 1


def test_what_cannot_be_compiled_is_left_to_torch_with_a_warning(compiled, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AutoschedError("no")

    monkeypatch.setattr("autosched.torch_backend.subgraph.compile_network", refuse)
    warn_once.cache_clear()
    x = torch.randn(3)
    fast = torch.compile(lambda a: torch.relu(a) + 1.0, backend=backend)
    with pytest.warns(UserWarning, match="cannot be compiled: no"):
        fast(x)
    assert_close(values(fast(x)), torch.relu(x) + 1.0)


def test_explain_names_what_torch_runs(compiled):
    class Broken(nn.Module):
        def forward(self, x):
            y = torch.sort(torch.relu(x) * 2.0, 1)[0] + 1.0
            torch._dynamo.graph_break()
            return torch.nn.functional.dropout(y.t() * 3.0) + 1.0

    fast = torch.compile(Broken(), backend=backend)
    with torch.no_grad():
        fast(torch.randn(4, 3))
    facts = autosched.explain(fast)
    assert facts["with_torch"] == "aten.native_dropout.default (1), aten.sort.default (1)"
    assert (facts["graphs"], facts["programs"]) == (2, 4)
    assert 0.0 < facts["with_torch_share"] < 1.0


def test_explain_tells_modules_of_one_class_apart(compiled):
    modules = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))]
    compiles = [torch.compile(module, backend=backend) for module in modules]
    for fast in compiles:
        fast(torch.randn(2, 3))
    assert [autosched.explain(fast)["with_torch"] for fast in compiles] == [
        "nothing",
        "aten.native_dropout.default (1)",
    ]


def test_explain_asks_for_something_that_was_compiled():
    with pytest.raises(UsageError, match="compiled nothing of it"):
        autosched.explain(torch.compile(lambda a: a + 1, backend=backend))
    with pytest.raises(UsageError, match="explain takes the number of a record"):
        autosched.explain(None)


def test_a_compiled_program_runs_and_takes_new_weights():
    torch._dynamo.reset()
    module, x = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.randn(2, 5)
    fast = torch.compile(module, backend="autosched", options={"threads": 1})
    with torch.no_grad():
        assert_close(values(fast(x)), module(x))
        module[0].weight.mul_(-0.5)
        assert_close(values(fast(x)), module(x))
