"""Networks whose sizes vary: a program for each choice, from the schedules and with the weights of others."""

from __future__ import annotations

import gc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import autosched as at  # noqa: E402
from autosched.errors import GraphError, SizesWarning, SplitWarning, UsageError  # noqa: E402
from autosched.executor import dynamic_model as module  # noqa: E402
from autosched.executor import hot_swap  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from autosched.graph.onnx import load_onnx  # noqa: E402
from autosched.runtime.simulator.build import find_compiler  # noqa: E402
from autosched.tuner.workload_spec import WorkloadSpec, distance  # noqa: E402
from tests.graph.onnx.models import model, node  # noqa: E402
from tests.measure.gpu_kernels import opencl_target  # noqa: E402

ENQUEUE = hot_swap.enqueue  # before a fixture replaces it


@pytest.fixture
def often(nothing_in_the_background: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that were called three times get a program of their own in the background, however fast it is."""
    monkeypatch.setattr(hot_swap, "enqueue", ENQUEUE)
    monkeypatch.setattr(hot_swap, "DELAY_S", 0.0)
    monkeypatch.setattr(module, "OFTEN", 3)
    monkeypatch.setattr(module, "FASTER", float("inf"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = softmax(relu(x u) v) over rows of any number, in any number of images."""
    rng = np.random.default_rng(0)
    constants = {"u": rng.standard_normal((13, 24), "float32"), "v": rng.standard_normal((24, 7), "float32")}
    nodes = [node("MatMul", ["x", "u"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["s"])]
    nodes.append(node("Softmax", ["s"], ["y"], axis=1))
    made = tmp_path_factory.mktemp("varying") / "net.onnx"
    onnx.save(model(nodes, {"x": ["batch", "rows", 13]}, constants=constants), made)
    return made


def right(path: Path, x: Any) -> Any:
    graph = load_onnx(path, {"batch": x.shape[0], "rows": x.shape[1]})
    return interpret(graph, {"x": x})["y"]


def test_a_program_is_for_all_sizes_but_1(path: Path) -> None:
    net = at.load_dynamic(path, threads=1)
    rng = np.random.default_rng(1)
    for batch, rows in ((2, 5), (1, 1), (3, 17), (2, 5), (1, 6), (7, 1)):
        x = rng.standard_normal((batch, rows, 13), "float32")
        np.testing.assert_allclose(net(x), right(path, x), rtol=1e-5, atol=1e-6)
        out = np.zeros((batch, rows, 7), "float32")
        assert net(x=x, out=out) is out
        np.testing.assert_array_equal(out, net(x))
    assert net.sizes[-1] == {"batch": 7, "rows": 1}
    assert len(net.sizes) == 5
    assert "4 programs" in repr(net)


def test_a_file_is_loaded_for_the_dimensions_that_have_no_size(path: Path) -> None:
    net = at.load(path, sizes={"batch": 2}, threads=1)
    assert isinstance(net, at.VaryingModel)
    assert [str(spec) for spec in net.inputs] == ["float32[2, -1, 13]"]
    assert net.threads == 1
    rng = np.random.default_rng(5)
    for rows in (3, 6):
        x = rng.standard_normal((2, rows, 13), "float32")
        np.testing.assert_allclose(net(x), right(path, x), rtol=1e-5, atol=1e-6)
    assert not isinstance(at.load(path, sizes={"batch": 2, "rows": 3}, threads=1), at.VaryingModel)
    for ask in (at.verify, at.explain, at.show, at.tune, lambda net: net.outputs, lambda net: net.save("net.asc")):
        with pytest.raises(UsageError, match=r'varies in rows, .* model\.of\(\*\*{"rows": N}\) is one'):
            ask(net)
    for ask in (at.verify, at.explain, at.show, at.tune):
        with pytest.raises(GraphError, match=r"must be given: batch \(of x\), rows \(of x\); with --size NAME=N"):
            ask(path)
    for load in (at.load, at.load_dynamic):
        with pytest.raises(GraphError, match="no dimension bach to give a size to; it has: batch, rows"):
            load(path, sizes={"bach": 2})


def test_dimensions_of_an_input_that_is_fixed_do_not_vary(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "z"], ["y"])]
    onnx.save(model(nodes, {"x": ["rows", "columns"], "z": ["rows", 1]}), tmp_path / "net.onnx")
    z = np.arange(3, dtype="float32").reshape(3, 1)
    net = at.load(tmp_path / "net.onnx", inputs={"z": z}, threads=1)
    for columns in (4, 7):
        np.testing.assert_array_equal(net(x := np.ones((3, columns), "float32")), x + z)
    assert net.sizes == ({"columns": 4}, {"columns": 7})


def test_a_program_takes_over_schedules_and_weights(path: Path) -> None:
    net = at.load_dynamic(path, threads=1)
    first, second = net.of(batch=2, rows=64), net.of(batch=2, rows=61)
    assert not any(task.kernel_spec.steps for task in first.tasks)
    steps = {task.kernel_spec.workload.sized.structure: task.kernel.schedule.steps for task in first.tasks}
    for task in second.tasks:
        assert task.kernel.schedule.steps == steps[task.kernel_spec.workload.sized.structure]
        assert not task.kernel_spec.steps, "a transferred schedule is not a tuned one"
    assert second.block is first.block
    for name, array in first.program.graph.constants.items():
        assert second.program.graph.constants[name] is array
    assert net.of(rows=64, batch=2) is not None
    assert [size["rows"] for size in net.sizes] == [61, 64]


def test_the_nearest_schedule_is_taken(path: Path) -> None:
    net = at.load_dynamic(path, threads=1)
    spec = net.of(batch=2, rows=64).tasks[0].kernel_spec.workload
    forms = [WorkloadSpec(spec.text.replace("64", str(rows))).sized for rows in (64, 80, 8)]
    assert forms[0].structure == forms[1].structure == forms[2].structure
    distances = [distance(forms[0].sizes, form.sizes) for form in forms]
    assert 0 == distances[0] < distances[1] < distances[2]
    assert WorkloadSpec(spec.text.replace("64", "1")).sized.structure != forms[0].structure


def test_programs_that_were_not_used_for_longest_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROGRAMS", 2)
    net = at.load_dynamic(path, sizes={"batch": 1}, threads=1)
    for rows in (2, 3, 2, 4):
        net.of(rows=rows)
    assert net.sizes == ({"rows": 2}, {"rows": 4})
    with pytest.raises(UsageError, match="3 combinations of sizes are asked for, and 2 programs are kept"):
        net.prepare({"rows": (5, 6, 7)})


def test_programs_are_made_ahead(path: Path) -> None:
    net = at.load_dynamic(path, sizes={"batch": (1, 2), "rows": [3]}, threads=1)
    assert net.sizes == ({"batch": 1, "rows": 3}, {"batch": 2, "rows": 3})
    with pytest.raises(UsageError, match="sizes of all of batch, rows: rows has none"):
        at.load_dynamic(path, sizes={"batch": (1, 2)})


def test_calls_from_several_threads(path: Path) -> None:
    net = at.load_dynamic(path, sizes={"batch": 1}, threads=1)
    rng = np.random.default_rng(3)
    given = [rng.standard_normal((1, 1 + n % 3, 13), "float32") for n in range(24)]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(given, pool.map(net, given), strict=True):
            np.testing.assert_allclose(y, right(path, x), rtol=1e-5, atol=1e-6)
    assert len(net.sizes) == 3


def test_what_is_no_size(path: Path) -> None:
    net = at.load_dynamic(path, limits={"batch": range(1, 5), "rows": range(4, 17, 4)}, threads=1)
    for x, reason in (
        (np.zeros((5, 8, 13), "float32"), "batch is 5, and may be 1 to 4"),
        (np.zeros((1, 6, 13), "float32"), "rows is 6, and may be 4 to 16 in steps of 4"),
        (np.zeros((0, 4, 13), "float32"), "batch is 0, and may be 1 to 4"),
        (np.zeros(3, "float32"), "x has the shape [3], and dimension 1 of it is rows"),
        ([[[1.0]]], "x must be an array, but got a builtins.list; convert it with np.asarray"),
    ):
        with pytest.raises(UsageError) as raised:
            net(x)
        assert reason in str(raised.value)
    assert net.sizes == ()
    with pytest.raises(UsageError, match=r"x must be float32\[1, 4, 13\], but got float32\[1, 4, 12\]"):
        net(np.zeros((1, 4, 12), "float32"))
    with pytest.raises(UsageError, match="varies in batch, rows, got sizes of batch"):
        net.of(batch=1)
    with pytest.raises(UsageError, match="takes 1 arrays"):
        net()
    with pytest.raises(UsageError, match="does not vary in width, but in batch, rows"):
        at.load_dynamic(path, limits={"width": range(3)})
    with pytest.raises(UsageError, match="has no symbolic dimension"):
        at.load_dynamic(path, sizes={"batch": 1, "rows": 1})
    with pytest.raises(UsageError, match="the sizes of a saved network are fixed"):
        at.load_dynamic(path.with_suffix(".asc"))
    with pytest.raises(UsageError, match="those of a Graph are fixed"):
        at.load_dynamic(load_onnx(path, {"batch": 1, "rows": 1}))


def test_torch_modules_vary_in_all_their_dimensions() -> None:
    torch = pytest.importorskip("torch")
    conv = torch.nn.Conv2d(3, 5, 3, padding=1).eval()
    net = at.load_dynamic(conv, (torch.zeros(1, 3, 8, 8),), threads=1)
    for shape in ((1, 3, 8, 8), (2, 3, 7, 5)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(net(x), conv(x))
    assert len(net.sizes) == 2


def test_a_torch_module_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    exported = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **more: exported.append(a) or export(*a, **more))

    class Positions(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            batch, rows, columns = x.shape
            places = torch.arange(rows, dtype=x.dtype).reshape(1, rows, 1)
            return torch.cat([x + places, x.flip(1)], 1).reshape(batch, 2 * rows * columns) / rows

    net = at.load_dynamic(Positions(), (torch.zeros(2, 3, 5),), threads=1)
    with warnings.catch_warnings(record=True) as caught:
        for shape in ((2, 3, 5), (3, 7, 2), (4, 2, 13), (1, 3, 5), (1, 7, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(net(x), Positions()(x))
    assert len(exported) == 2  # images of one are another matter
    assert not [w for w in caught if w.category is SplitWarning], "indices of 32 bits have numbers of 32 bits"


def test_a_torch_module_that_decides_by_its_sizes() -> None:
    torch = pytest.importorskip("torch")

    class Deciding(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[0] > 4:
                return x * 2
            return x.reshape(-1, 3) if x.shape[1] % 3 == 0 else x + int(x.shape[1])

    net = at.load_dynamic(Deciding(), (torch.zeros(3, 6),), threads=1)
    for shape in ((3, 6), (5, 6), (4, 5), (4, 9), (6, 7), (1, 6), (2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(net(x), Deciding()(x))


def test_a_network_that_cannot_be_traced_has_a_program_for_each_choice_of_sizes(path: Path) -> None:
    def fails(_: Any) -> Any:
        raise TypeError("a bug")

    net = at.load_dynamic(path, threads=1)
    net.trace = fails
    x = np.random.default_rng(4).standard_normal((2, 5, 13), "float32")
    with pytest.warns(SizesWarning, match="each choice has a program of its own: a bug"):
        np.testing.assert_allclose(net(x), right(path, x), rtol=1e-5, atol=1e-6)
    assert net.trace is None
    np.testing.assert_allclose(net(x[:, :3]), right(path, x[:, :3]), rtol=1e-5, atol=1e-6)


def call(net: Any, path: Path, batch: int, rows: int, times: int = 3) -> None:
    x = np.random.default_rng(batch).standard_normal((batch, rows, 13), "float32")
    expected = right(path, x)
    for _ in range(times):
        np.testing.assert_allclose(net(x), expected, rtol=1e-5, atol=1e-6)


def test_sizes_that_are_called_often_have_a_program_of_their_own(path: Path, often: None) -> None:
    net = at.load(path, threads=1)
    call(net, path, 4, 6, times=2)
    assert net.wait(0), "nothing is compiled for sizes that come seldom"
    call(net, path, 4, 6, times=1)
    call(net, path, 3, 6, times=2)
    assert net.wait(120)
    assert net.sizes == ({"batch": 4, "rows": 6}, {"batch": 3, "rows": 6})
    (own,) = net._programs.values()
    assert own.inputs[0].shape == (4, 6, 13)
    assert own.block is net._networks[0].block
    assert all(not task.kernel.sizes for task in own.tasks), "constants take the place of numbers of tables"
    call(net, path, 4, 6)
    assert net._last[1].run is own
    call(net, path, 3, 6)
    assert net.wait(120)
    assert len(net._programs) == 2
    assert net.of(batch=4, rows=6) is own


def test_a_program_that_is_no_faster_is_not_used(path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FASTER", 0.0)
    net = at.load(path, threads=1)
    call(net, path, 4, 6, times=7)
    assert net.wait(120)
    assert not net._programs
    call(net, path, 4, 6)
    assert net.wait(0), "it is tried once"


def test_the_number_of_programs_is_bounded(path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROGRAMS", 1)
    net = at.load(path, threads=1)
    for rows in (5, 6):
        call(net, path, 4, rows)
        assert net.wait(120)
    assert [*net._programs] == [(4, 5)]


def test_no_program_is_compiled_where_none_is_wanted(path: Path, often: None) -> None:
    for net in (never := at.load(path, threads=1, specialise="never"), gone := at.load(path, threads=1)):
        call(net, path, 4, 6, times=2)
    call(never, path, 4, 6)
    assert not never._jobs
    call(gone, path, 4, 6, times=1)
    (ended,), reference = gone._jobs, weakref.ref(gone)
    del gone, net
    gc.collect()
    assert reference() is None
    assert ended.wait(120)


def gpu_options(target: str) -> dict[str, Any]:
    if target == "opencl":
        opencl_target()
        return {"target": "opencl", "records": False}
    if find_compiler() is None:
        pytest.skip("no g++")
    return {"target": "cuda -arch=sm_80", "simulate": True, "records": False}


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_a_gpu_has_programs_for_many_sizes(path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROGRAMS", 4)
    net = at.load(path, **gpu_options(target))
    for batch, rows in ((2, 5), (3, 17), (2, 40), (31, 2), (1, 1), (0, 4), (2, 0), (1, 6), (1, 7), (2, 5)):
        x = np.random.default_rng(rows).standard_normal((batch, rows, 13), "float32")
        np.testing.assert_allclose(net(x), right(path, x), rtol=1e-5, atol=1e-6)
        out = np.zeros((batch, rows, 7), "float32")
        assert net(x=x, out=out) is out
        np.testing.assert_array_equal(out, net(x))
    assert not net._programs
    assert len(net._networks) == 5, "one for sizes from 2 on, and one for each dimension of 0 or 1"
    assert [tuple(size.values()) for size in net.sizes] == [(2, 0), (1, 6), (1, 7), (2, 5)], "each has an arena"
    own = net.of(batch=2, rows=5)
    assert all(not task.kernel.sizes for task in own.tasks)
    assert own.weights is net._networks[0].weights
    call(net, path, 2, 5)


def test_a_gpu_has_a_program_for_each_choice_of_sizes_where_it_is_wanted(path: Path) -> None:
    net = at.load(path, **gpu_options("opencl"), specialise="now")
    for rows in (3, 4):
        call(net, path, 2, rows, times=1)
    assert len(net._programs) == 2
    assert not net._networks


def test_calls_of_a_gpu_from_several_threads(path: Path) -> None:
    net = at.load(path, **gpu_options("opencl"))
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(call, net, path, batch, rows) for batch in (2, 3) for rows in (5, 9, 12)]
    for result in results:
        result.result()
    assert len(net._networks) == 1


@pytest.mark.parametrize("is_on_device", [False, True])
def test_sizes_that_are_called_often_have_a_program_of_their_own_on_a_gpu(
    path: Path, often: None, is_on_device: bool
) -> None:
    net = at.load(path, **gpu_options("opencl"))
    x = np.random.default_rng(6).standard_normal((4, 6, 13), "float32")
    given = at.to_device(x, device="opencl") if is_on_device else x
    for _ in range(4):
        np.testing.assert_allclose(at.to_device(net(given), device="cpu"), right(path, x), rtol=1e-5, atol=1e-6)
    assert net.wait(120)
    (own,) = net._programs.values()
    assert own.weights is net._networks[0].weights
    assert all(not task.kernel.sizes for task in own.tasks)
    np.testing.assert_allclose(at.to_device(net(given), device="cpu"), right(path, x), rtol=1e-5, atol=1e-6)
    assert net._last[1].run is own
