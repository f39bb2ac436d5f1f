from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.errors import AutoschedError, UsageError
from autosched.te import Tensor
from autosched.te.operators.registry import WORKLOADS
from autosched.tuner.definition import define, redefine
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.workload_spec import WorkloadSpec


@at.workload
def scaled(M: int = 8, N: int = 4, dtype: str = "float32") -> Tensor:
    A = te.placeholder((M, N), dtype, name="A")
    result: Tensor = te.compute((M, N), lambda i, j: A[i, j] * A[i, j], name="C")
    return result


FILE = """
import numpy as np
import autosched as at
from autosched import te

@at.workload
def doubled(M=8, N=4, dtype=np.float32):
    A = te.placeholder((M, N), dtype, name="A")
    return te.compute((M, N), lambda i, j: A[i, j] + A[i, j], name="C")
"""


def test_a_built_in_workload() -> None:
    found = define("matmul", WorkloadOptions(shape=(32, 16, 64)))
    assert (found.name, found.shape, found.dtype) == ("matmul", (32, 16, 64), "float32")
    assert found.dag.outputs[0].shape == (32, 16)
    assert define("gmm", WorkloadOptions(batch=3)).shape[0] == 3
    assert (
        define("gmm", WorkloadOptions(dtype=np.float64)).dtype
        == define("gmm", WorkloadOptions(dtype=np.dtype("float64"))).dtype
        == "float64"
    )
    assert define("matmul", WorkloadOptions(settings={"K": 8})).shape[2] == 8
    with pytest.raises(UsageError, match="matmul"):
        define("matmulx")


def test_types_of_numpy_and_torch_are_known_by_their_names() -> None:
    def twice(M: int = 4, dtype: object = np.float64) -> te.Tensor:
        X = te.placeholder((M,), dtype, name="X")
        return te.compute((M,), lambda i: X[i] + X[i], name="Y")

    class Torch:
        def __str__(self) -> str:
            return "torch.int32"

    assert define(twice).dtype == "float64"
    assert define(twice, WorkloadOptions(dtype="float32")).dtype == "float32"  # asked for, it is no default
    assert json.loads(define(twice, WorkloadOptions(settings={"dtype": np.int8})).spec)["args"] == {
        "M": 4,
        "dtype": "int8",
    }
    assert define(twice, WorkloadOptions(dtype=Torch())).dtype == "int32"  # type: ignore[arg-type]


def test_a_decorated_function_takes_shape_settings_and_batch() -> None:
    assert define(scaled).shape == (8, 4)
    assert define(scaled, WorkloadOptions(shape=(2, 3))).shape == (2, 3)
    found = define(scaled, WorkloadOptions(batch=16, settings={"N": 5}))
    assert (found.name, found.shape, found.dtype) == ("scaled", (16 * 8, 5), "float32")  # M counts rows, as built-in
    assert define(scaled, WorkloadOptions(dtype="float64")).dag.inputs[0].dtype == "float64"
    assert found.dag.content_hash != define(scaled).dag.content_hash


@pytest.mark.parametrize(
    ("options", "message"),
    [({"shape": (1, 2, 3)}, r"numbers \(M, N\), but 3"), ({"settings": {"K": 1}}, "no argument K; it has M, N, dtype")],
)
def test_wrong_arguments_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        define(scaled, WorkloadOptions(**options))  # type: ignore[arg-type]


def test_a_type_is_refused_where_the_function_has_no_such_argument() -> None:
    def plain(M: int = 4) -> Tensor:
        return scaled(M)

    assert define(plain).dtype == "float32"
    with pytest.raises(UsageError, match="plain has no argument dtype; it has M"):
        define(plain, WorkloadOptions(dtype="float32"))


def test_a_function_without_defaults_is_refused() -> None:
    def bad(M: int) -> Tensor:
        return scaled(M)

    with pytest.raises(UsageError, match="argument M of the workload bad needs"):
        at.workload(bad)


def test_a_function_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    found = define(f"{path}:doubled", WorkloadOptions(settings={"M": 3}))
    assert (found.name, found.shape, found.dtype) == (f"{path}:doubled", (3, 4), "float32")
    narrow = define(found.name, WorkloadOptions(dtype="int8"))
    assert redefine(narrow.spec, found.name).dag.content_hash == narrow.dag.content_hash


def test_a_stored_description_rebuilds_built_in_workloads_only(tmp_path: Path) -> None:
    for first in (
        define("matmul", WorkloadOptions(shape=(32, 16, 64))),
        define("matmul", WorkloadOptions(shape=(8, 8, 8), dtype="float64")),
    ):
        assert redefine(first.spec, None).dag.content_hash == first.dag.content_hash
    own = define(scaled, WorkloadOptions(shape=(6, 7), dtype="float64"))
    with pytest.raises(UsageError, match="scaled"):
        redefine(own.spec, None)
    assert redefine(own.spec, scaled).dag.content_hash == own.dag.content_hash
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    filed = define(f"{path}:doubled")
    assert json.loads(filed.spec)["name"].endswith("mine.py:doubled")
    with pytest.raises(UsageError, match="doubled"):
        redefine(filed.spec, None)
    assert redefine(filed.spec, f"{path}:doubled").dag.content_hash == filed.dag.content_hash


def test_a_stored_description_keeps_the_order_of_the_arguments() -> None:
    first = define("conv2d", WorkloadOptions(shape=(1, 8, 9, 4, 6, 3, 1, 1), settings={"layout": "NCHW"}))
    assert redefine(first.spec, None).shape == first.shape == (1, 8, 9, 4, 6, 3, 1, 1, 1, 1)
    assert define("sfm", WorkloadOptions(shape=(8, 16), batch=3)).shape == (24, 16)
    assert define("conv2d", WorkloadOptions(batch=3)).shape[0] == 3


@pytest.mark.parametrize("spec", ["", "{", "[]", "{}", '{"name":"gmm","args":3,"dtype":"float32"}'])
def test_nonsense_is_not_a_description(spec: str) -> None:
    with pytest.raises(UsageError, match="cannot be understood"):
        redefine(spec, None)


ODD = (
    None,
    True,
    0,
    -1,
    2**31,
    2**62,
    10**400,
    1.5,
    1e999,
    "",
    "x",
    "9" * 5000,
    "\ud800",
    [],
    {},
    [[[]]],
    "NHWC",
    "int8",
)


@pytest.mark.parametrize("seed", range(4))
def test_a_stored_description_is_a_definition_or_one_sentence(seed: int) -> None:
    rng = random.Random(seed)
    specs = [define(name).spec for name in WORKLOADS]
    n_defined = 0
    for _ in range(400):
        data = json.loads(rng.choice(specs))
        for _ in range(rng.choice([1, 2])):
            part = rng.choice([data, data["args"]]) if isinstance(data.get("args"), dict) else data
            name = rng.choice([*part, "weights", "winograd", "dtype", "out_dtype", "\udc00"])
            part[name] = rng.choice(ODD)
        text = json.dumps(data)
        if rng.random() < 0.3:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["", "[" * 5000, "9" * 5000, "\x00", '"']) + text[at + rng.randrange(4) :]
        with suppress(AutoschedError):
            redefine(text, None)
            n_defined += 1
    assert n_defined > 0


def test_less_precise_products_are_another_workload() -> None:
    exact = define("gmm", WorkloadOptions(shape=(1, 8, 9, 10)))
    short = define("gmm", WorkloadOptions(shape=(1, 8, 9, 10), precision="tf32"))
    assert json.loads(short.spec)["precision"] == "tf32"
    assert "precision" not in json.loads(exact.spec)
    assert redefine(short.spec, None).dag.content_hash == short.dag.content_hash != exact.dag.content_hash
    with pytest.raises(UsageError, match="softmax has no sum of products of float32"):
        define("softmax", WorkloadOptions(precision="tf32"))
    with pytest.raises(UsageError, match=r"precision must be float32, tf32, 3xtf32 or fp8-fast, got 'bf16'"):
        WorkloadOptions(precision="bf16")


def test_an_attribute_without_a_value_is_no_size() -> None:
    def spec(scale: int | None) -> WorkloadSpec:
        nodes = [["attention", [0], [1], {"scale": scale, "heads": 4}]]
        graph = {"inputs": [[[8, 16], "float32"]], "nodes": nodes, "outputs": [1], "weights": 0}
        return WorkloadSpec.of({"name": "attention", "args": {}, "dtype": "float32", "graph": graph})

    none, two, three = spec(None).sized, spec(2).sized, spec(3).sized
    assert two.structure == three.structure != none.structure
    assert (none.sizes, two.sizes) == ((8, 16, 4), (8, 16, 4, 2))
