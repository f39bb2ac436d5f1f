"""Networks that were loaded before: the same results as after an ordinary load, and when an entry is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import autosched
from autosched.errors import AutoschedError, FallbackWarning, OutOfRangeError, UsageError
from autosched.executor import hot_swap
from autosched.executor.compile_options import CompileOptions
from autosched.executor.cpu_model import CpuModel
from autosched.executor.hot_swap import HotSwapModel
from autosched.executor.model import Model
from autosched.executor.model_cache import file_digest, file_ranges
from autosched.executor.model_cache import request as request_module
from autosched.executor.model_cache.cached_model import CachedModel
from autosched.executor.model_cache.file_digest import content_digest
from autosched.executor.model_cache.request import load_request
from autosched.inspection.render import TEXTS
from autosched.kernel.trust import warn_user
from autosched.network_api import MEMORY
from autosched.runtime import disk_cache
from autosched.store import Database
from tests.graph.onnx.models import model, node

OPTIONS: dict[str, Any] = {"threads": 1, "records": False, "specialise": "now"}
ENQUEUE = hot_swap.enqueue  # before a fixture replaces it
RNG = np.random.default_rng(1)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype("float32")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    monkeypatch.setattr(file_ranges, "SMALL_BYTES", 256)  # the networks here are small


def perceptron(sizes: tuple[int, ...] = (24, 40, 17)) -> onnx.ModelProto:
    """Products with weights of the file, each with a bias that is computed from two of its tensors."""
    nodes, constants, x = [], {}, "x"
    for n, (k, m) in enumerate(pairwise(sizes)):
        constants |= {f"w{n}": weights(k, m), f"a{n}": weights(m), f"b{n}": weights(m)}
        nodes += [
            node("Add", [f"a{n}", f"b{n}"], [f"bias{n}"]),
            node("MatMul", [x, f"w{n}"], [f"p{n}"]),
            node("Add", [f"p{n}", f"bias{n}"], [f"s{n}"]),
            node("Relu", [f"s{n}"], [x := f"y{n}"]),
        ]
    return model(nodes, {"x": (3, sizes[0])}, (x,), constants)


def convolution() -> onnx.ModelProto:
    """A convolution whose weights are multiplied by the scales of a normalisation: they are of no file."""
    constants = {"w": weights(8, 5, 3, 3), **{name: weights(8) for name in ("scale", "bias", "mean")}}
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    return model(nodes, {"x": (1, 5, 9, 9)}, constants={**constants, "var": np.abs(weights(8)) + 1})


def quantised() -> onnx.ModelProto:
    scale, zero = np.float32(0.05), np.uint8(3)
    constants = {
        "w": RNG.integers(-9, 9, (16, 24)).astype("int8"), "ws": np.asarray(scale), "wz": np.asarray(np.int8(0)),
        "s": np.asarray(scale), "z": np.asarray(zero),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearMatMul", ["q", "s", "z", "w", "ws", "wz", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    return model(nodes, {"x": (3, 16)}, constants=constants)


def empty() -> onnx.ModelProto:
    """Two results, one of them without elements, and a constant without elements."""
    nodes = [
        node("Concat", ["x", "none"], ["c"], axis=0),
        node("MatMul", ["c", "w"], ["y"]),
        node("Relu", ["e"], ["z"]),
    ]
    constants = {"none": np.zeros((0, 4), "float32"), "w": weights(4, 7)}
    return model(nodes, {"x": (3, 4), "e": (0, 5)}, ("y", "z"), constants)


def gathered() -> onnx.ModelProto:
    """Rows of a table, which kernels read as it is in the file; indices are checked in each call."""
    nodes = [node("Cast", ["i"], ["ids"], to=onnx.TensorProto.INT64), node("Gather", ["table", "ids"], ["y"])]
    return model(nodes, {"i": (6,)}, constants={"table": weights(11, 70)})


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    made.__name__: made for made in (perceptron, convolution, quantised, empty, gathered)
}


def inputs_of(network: Model) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(2)
    return [rng.uniform(0, 9, spec.shape).astype(spec.dtype) for spec in network.inputs]


def outputs_of(network: Model) -> list[bytes]:
    outputs = network(*inputs_of(network))
    return [array.tobytes() for array in (outputs if isinstance(outputs, tuple) else (outputs,))]


def saved(folder: Path, network: onnx.ModelProto, **how: Any) -> Path:
    onnx.save(network, folder / "net.onnx", **how)
    return folder / "net.onnx"


def external(folder: Path, network: onnx.ModelProto) -> Path:
    """The network with its tensors in another file, at offsets that are no multiples of their elements."""
    path = saved(folder, network, save_as_external_data=True, location="data/weights.bin", size_threshold=0)
    content = (folder / "data/weights.bin").read_bytes()
    moved = onnx.load(path, load_external_data=False)
    for tensor in moved.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 4)
    (folder / "data/weights.bin").write_bytes(b"1234" + content)
    path.write_bytes(moved.SerializeToString())
    return path


def load(path: Path, **options: Any) -> Model:
    return autosched.load(path, **{**OPTIONS, **options})


def both(path: Path, **options: Any) -> tuple[CpuModel, CachedModel]:
    """The network by an ordinary load, and once more."""
    first, second = load(path, **options), load(path, **options)
    assert isinstance(first, CpuModel)
    assert isinstance(second, CachedModel)
    return first, second


def key_of(path: Path) -> str:
    request = load_request(path, None, None, CompileOptions(**OPTIONS))
    assert request is not None
    return request.key


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("save", [saved, external])
def test_the_second_load_computes_the_same(name: str, save: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ordinary, cached = both(save(tmp_path, NETWORKS[name]()))
    assert outputs_of(cached) == outputs_of(ordinary)
    assert (cached.inputs, cached.outputs, cached.threads) == (ordinary.inputs, ordinary.outputs, ordinary.threads)
    assert (cached.arena_bytes, cached.bound_bytes) == (ordinary.arena_bytes, ordinary.bound_bytes)
    assert (cached.in_place, cached.device) == (ordinary.in_place, ordinary.device)
    assert repr(cached) == repr(ordinary)


def test_an_index_out_of_range_has_the_same_message(tmp_path: Path) -> None:
    messages = []
    for network in both(saved(tmp_path, gathered())):
        with pytest.raises(OutOfRangeError) as caught:
            network(np.full(6, 11, "float32"))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "the index 11 is out of range" in messages[0]


def test_constants_of_files_are_not_stored(tmp_path: Path) -> None:
    network = perceptron((24, 70))
    load(path := saved(tmp_path, network))
    entry = disk_cache.read(key_of(path))
    assert entry is not None
    facts, code = entry
    tensors = {tensor.name: tensor.raw_data for tensor in network.graph.initializer}
    files = {name: number for name, (number, _, _) in facts["constants"].items()}
    assert sorted(files.values()) == [-1, 0], "the bias is computed from two tensors"
    assert tensors["w0"] not in code
    (bias,) = (numbers for numbers in facts["constants"].values() if numbers[0] == -1)
    begin = sum(facts["objects"]) + bias[1]
    expected = np.frombuffer(tensors["a0"], "float32") + np.frombuffer(tensors["b0"], "float32")
    np.testing.assert_array_equal(np.frombuffer(code[begin : begin + bias[2]], "float32"), expected)


def test_what_is_asked_later_is_made_in_the_ordinary_way(tmp_path: Path) -> None:
    ordinary, cached = both(saved(tmp_path, perceptron()))
    assert cached.whole.linked is cached.linked, "the same plan is not linked twice"  # type: ignore[attr-defined]
    assert [t.kernel_spec for t in cached.tasks] == [t.kernel_spec for t in ordinary.tasks]
    assert cached.fusion_decisions == ordinary.fusion_decisions
    for as_ in (*TEXTS, MEMORY, "llvm"):
        assert cached.show(as_) == ordinary.show(as_), as_
    reports = [network.explain() for network in (ordinary, cached)]
    kernels = [
        sorted((x.operators, x.origins, x.steps, x.flops, x.n_bytes) for x in report.layers) for report in reports
    ]
    assert kernels[0] == kernels[1]
    assert reports[0].fusion_choices == reports[1].fusion_choices
    ordinary.save(tmp_path / "ordinary.asc")
    cached.save(tmp_path / "cached.asc")
    assert (tmp_path / "cached.asc").read_bytes() == (tmp_path / "ordinary.asc").read_bytes()
    assert cached.verify().passed
    constants = {name: array + 1 for name, array in ordinary.original.constants.items()}
    changed = [network.with_weights(constants) for network in (ordinary, cached)]
    assert outputs_of(changed[0]) == outputs_of(changed[1]) != outputs_of(ordinary)
    assert outputs_of(cached) == outputs_of(ordinary)


def test_a_changed_file_is_another_network(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    _, cached = both(path)
    results = outputs_of(cached)
    path.write_bytes(perceptron().SerializeToString())  # of the same size
    assert outputs_of(cached) == results
    with pytest.raises(UsageError, match=r"net\.onnx has changed since the network was loaded from it"):
        _ = cached.tasks
    ordinary, again = both(path)
    assert outputs_of(again) == outputs_of(ordinary) != results


def test_changed_external_data_are_another_network(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path, data = external(tmp_path, perceptron()), tmp_path / "data" / "weights.bin"
    _, cached = both(path)
    results = outputs_of(cached)
    content = bytearray(data.read_bytes())
    for weight in range(4, 4 + 4 * 24 * 40, 4):
        content[weight + 3] ^= 0x80  # the sign
    data.write_bytes(content)
    ordinary, again = both(path)
    assert outputs_of(again) == outputs_of(ordinary) != results
    with pytest.raises(UsageError, match=r"weights\.bin has changed"):
        _ = cached.program
    data.write_bytes(content[:-8])
    with pytest.raises(AutoschedError, match="bytes"):
        load(path)


def test_a_file_with_the_size_and_time_of_another_one_has_its_own_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, times = tmp_path / "file", (1_000_000_000, 1_000_000_000)
    digests = []
    for settled_s in (file_digest.SETTLED_S, -60.0):
        monkeypatch.setattr(file_digest, "SETTLED_S", settled_s)
        for content in (b"one", b"two"):
            path.write_bytes(content)
            os.utime(path, ns=times)
            digests += [content_digest(path), content_digest(path)]
    assert len(set(digests)) == 2
    assert digests[:4] == digests[4:] == [digests[0], digests[0], digests[2], digests[2]]


@pytest.mark.parametrize(
    "options",
    [{"threads": 2}, {"specialise": "never"}, {"winograd": True}, {"strict": True}, {"target": None}],
    ids=str,
)
def test_other_options_are_another_entry(options: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    both(path)
    both(path, **options)


def test_sizes_and_fixed_inputs_are_of_the_key(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Mul", ["p", "scale"], ["y"])]
    network = model(nodes, {"x": ("n", 24), "scale": (1,)}, constants={"w": weights(24, 17)})
    path, results = saved(tmp_path, network), []
    for size, scale in ((3, 2.0), (3, 4.0), (5, 4.0)):
        arguments: dict[str, Any] = {"sizes": {"n": size}, "inputs": {"scale": np.float32([scale])}}
        ordinary, cached = both(path, **arguments)
        arguments["inputs"]["scale"][0] = 9  # of the caller, who may change it
        assert outputs_of(cached) == outputs_of(ordinary)
        assert cached.original.constants["scale"] == [scale]
        results.append(outputs_of(cached))
    assert len({str(each) for each in results}) == 3


def test_another_version_of_the_code_has_entries_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron())
    both(path)
    monkeypatch.setattr(request_module, "code_version", lambda: ("LLVM", "another"))
    both(path)


def test_a_changed_database_is_consulted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "SETTLED_S", -60.0)
    path, database = saved(tmp_path, perceptron()), tmp_path / "records.db"
    both(path, records=True, db=database)
    with Database(database):
        pass
    both(path, records=True, db=database)
    monkeypatch.setattr(file_digest, "SETTLED_S", 60.0)
    for _ in range(2):  # it may be changed again within the granularity of the file system's times
        assert isinstance(load(path, records=True, db=database), CpuModel)


def change_entry(key: str, change: Callable[[dict[str, Any], bytes], tuple[Any, bytes]]) -> None:
    entry = disk_cache.read(key)
    assert entry is not None
    disk_cache.write(key, *change(*entry))


def change_file(key: str, length: int | None, byte: int | None = None) -> None:
    """Truncate the entry's file, or change one of its bytes."""
    content = bytearray(disk_cache.path_of(key).read_bytes())[:length]
    if byte is not None:
        content[byte] ^= 1
    disk_cache.path_of(key).write_bytes(content)


def with_fact(name: str, value: Any) -> Callable[[str], None]:
    return lambda key: change_entry(key, lambda facts, code: ({**facts, name: value}, code))


def with_plan(name: str, value: Any) -> Callable[[str], None]:
    return lambda key: change_entry(key, lambda facts, code: ({**facts, "plan": {**facts["plan"], name: value}}, code))


@pytest.mark.parametrize(
    "damage",
    [
        lambda key: change_file(key, -1),
        lambda key: change_file(key, 100),
        lambda key: change_file(key, 0),
        lambda key: change_file(key, None, 200),
        lambda key: change_entry(key, lambda facts, code: ({"name": "a kernel"}, code)),
        lambda key: change_entry(key, lambda facts, code: ([facts], code)),
        lambda key: change_entry(key, lambda facts, code: (facts, b"")),
        with_fact("constants", {}),
        with_fact("constants", {"w0": [0, 1 << 40, 4], "bias0": [0, 0, 4]}),
        with_fact("objects", [5]),
        with_fact("files", [["no such file", "digest"]]),
        with_fact("records", "another"),
        with_plan("symbols", ["no such function"]),
        with_plan("inputs", [{"name": "x", "shape": [-1], "dtype": "float32"}]),
        with_plan("outputs", [{"name": "y", "shape": [1], "dtype": "complex64"}]),
        with_plan("arena_bytes", 1 << 60),
        with_plan("weights", 3),
    ],
)
def test_a_damaged_entry_is_a_miss_and_written_anew(damage: Callable[[str], None], tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron((24, 40)))
    ordinary, _ = both(path)
    damage(key_of(path))
    again, cached = both(path)
    assert outputs_of(cached) == outputs_of(again) == outputs_of(ordinary)


def test_an_entry_of_another_network_is_a_miss(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(saved(tmp_path / name, perceptron((24, 40))))
        load(paths[-1])
    first, second = (disk_cache.path_of(key_of(path)) for path in paths)
    first.write_bytes(second.read_bytes())
    both(paths[0])


def test_a_load_with_warnings_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autosched.executor import compile_graph

    usual = compile_graph.prepare_graph

    def prepare_graph(*arguments: Any) -> Any:
        warn_user("a record does not fit")
        return usual(*arguments)

    monkeypatch.setattr(compile_graph, "prepare_graph", prepare_graph)
    path = saved(tmp_path, perceptron((24, 40)))
    for _ in range(2):
        with pytest.warns(UserWarning, match="a record does not fit"):
            assert isinstance(load(path), CpuModel)


def test_a_network_in_parts_is_not_kept(tmp_path: Path) -> None:
    nodes = [node("Unique", ["x"], ["u"]), node("Relu", ["u"], ["y"])]
    path = saved(tmp_path, model(nodes, {"x": (3, 4)}))
    for _ in range(2):
        with pytest.warns(FallbackWarning):
            assert not isinstance(load(path), CachedModel)


@pytest.mark.parametrize("level", ["2", "4"])
def test_passes_are_verified_and_printed_at_each_load(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, perceptron((24, 40)))
    monkeypatch.setenv("AUTOSCHED_DEBUG", level)
    for _ in range(2):
        assert isinstance(load(path), CpuModel)
    monkeypatch.delenv("AUTOSCHED_DEBUG")
    both(path)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron((24, 40)))

    def refuse(*arguments: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "_write", refuse)
        for _ in range(2):
            assert isinstance(load(path), CpuModel)
    both(path)


def test_kernels_that_were_specialised_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hot_swap, "enqueue", lambda job: None)
    monkeypatch.setattr(hot_swap, "DELAY_S", 0.0)
    path = saved(tmp_path, perceptron((24, 40, 17, 3, 30)))
    first = load(path, specialise="background")
    again = load(path, specialise="background")
    assert isinstance(first, HotSwapModel)
    assert isinstance(again, HotSwapModel), "the first process ended before it had compiled them"
    assert isinstance(again.model, CachedModel)
    assert outputs_of(again) == outputs_of(first)
    monkeypatch.setattr(hot_swap, "enqueue", ENQUEUE)
    last = load(path, specialise="background")
    assert isinstance(last, HotSwapModel)
    assert last.wait(120)
    assert isinstance(last.model, CpuModel)
    final = load(path, specialise="background")
    assert isinstance(final, CachedModel)
    assert outputs_of(final) == outputs_of(last)
    assert {task.kernel.name for task in last.tasks} == {task.kernel_spec.name for task in last.tasks}


SCRIPT = """
import sys
import numpy as np
import autosched
network = autosched.load(sys.argv[1], threads=1, records=False, specialise="now")
x = np.arange(72, dtype="float32").reshape(3, 24) / 72
print(type(network).__name__, network(x).tobytes().hex())
print(*sorted(sys.modules))
"""


def processes(path: Path, n: int) -> list[tuple[str, str, list[str]]]:
    """The class of the network, its results and the loaded modules of `n` processes at a time."""
    running = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(n)
    ]
    texts = [process.communicate(timeout=300)[0].split() for process in running]
    return [(words[0], words[1], words[2:]) for words in texts]


def test_processes_may_write_the_same_entry(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron((24, 33)))
    at_once = processes(path, 3)
    after = processes(path, 1)
    assert after[0][0] == "CachedModel"
    assert len({results for _, results, _ in (*at_once, *after)}) == 1


def test_the_second_load_imports_no_compiler(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron((24, 40)))
    load(path)
    ((name, _, modules),) = processes(path, 1)
    assert name == "CachedModel"
    compilers = (
        *("onnx", "google", "sqlite3", "subprocess", "cost_model", "search_spaces", "autosched.te", "autosched.lower"),
        *("autosched.schedule", "autosched.codegen", "autosched.planning", "autosched.measure", "autosched.store"),
        *("autosched.graph.onnx", "autosched.graph.passes", "autosched.graph.fusion", "autosched.graph.operators"),
    )
    assert [name for name in modules if name.startswith(compilers)] == []


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07"])
def test_a_file_that_is_no_model_is_refused_as_before(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(AutoschedError, match=r"net\.onnx"):
        load(path)
    with pytest.raises(AutoschedError, match="cannot be read"):
        load(tmp_path / "absent.onnx")
