"""What anything holds of a result stays as it was, over any number of later calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from autosched.runtime.kernel import Kernel, build_kernel
from autosched.runtime.spec import ArraySpec
from autosched.target import parse_target
from tests.helpers import in_threads
from tests.measure.gpu_kernels import gpu_source, opencl_target
from tests.runtime.test_kernel import ADD
from tests.runtime.test_weights import K, M, made

Call = Callable[[float], Any]  # the result of a kernel, all of whose elements depend on the number
CALLS = 8

VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda y: y,
    "a row": lambda y: y[0],
    "a row of a row": lambda y: y[0][1:],
    "an element": lambda y: y[1, 2:3],
    "transposed": lambda y: y.T,
    "ravel": lambda y: y.ravel(),
    "reshape": lambda y: y.reshape(-1)[3:],
    "squeeze": lambda y: y[:1].squeeze(),
    "view": lambda y: y.view(np.int32),
    "view of a row": lambda y: y[0].view(),
    "real": lambda y: y.real[1],
    "swapaxes": lambda y: np.swapaxes(y, 0, 1),
    "expand_dims": lambda y: np.expand_dims(y, 0)[0, 0],
    "diagonal": np.diagonal,
    "flat": lambda y: y.flat,
    "iterated": lambda y: list(y)[-1],
    "nditer": lambda y: np.nditer(y, order="C").itviews[0],
    "split": lambda y: np.array_split(y, 2)[1],
    "broadcast_to": lambda y: np.broadcast_to(y[0], (3, *y[0].shape)),
    "broadcast_arrays": lambda y: np.broadcast_arrays(y[0], np.ones((2, 1)))[0],
    "sliding_window_view": lambda y: sliding_window_view(y, 2, 0),
    "windows of a row": lambda y: sliding_window_view(y[0], 2),
    "as_strided": lambda y: as_strided(y[0], (2, 2), (4, 4)),
    "frombuffer": lambda y: np.frombuffer(y, np.float32),
    "frombuffer of a row": lambda y: np.frombuffer(y[0], np.float32),
    "memoryview": memoryview,
    "slice of a memoryview": lambda y: memoryview(y[1])[1:],
    "bytes of a memoryview": lambda y: memoryview(y).cast("B"),
    "array of a memoryview": lambda y: np.asarray(memoryview(y[0])),
    "from_dlpack": np.from_dlpack,
    "from_dlpack of a row": lambda y: np.from_dlpack(y[0]),
    "from_dlpack of a view": lambda y: np.from_dlpack(y.reshape(-1))[1:],
    "masked": lambda y: np.ma.masked_array(y[0]),
    "record": lambda y: y.reshape(-1)[1:5].view([("a", "f4"), ("b", "f4")])["b"],
    "memory": lambda y: y.base[:] if y.base is not None else y,
    "interface": lambda y: np.asarray(_ByInterface(y[0])),
    "pointer": lambda y: np.ctypeslib.as_array(y[1].ctypes.data_as(ctypes.POINTER(ctypes.c_float)), (3,)),
    "in a cycle": lambda y: _Cycle(y[0]),
}


class _ByInterface:
    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class _Cycle:
    """Holds a view and itself."""

    def __init__(self, array: Any) -> None:
        self.array, self.me = array, self

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self.array


TORCH_VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "from_numpy": lambda torch, y: torch.from_numpy(y),
    "from_numpy of a row": lambda torch, y: torch.from_numpy(y[0]),
    "a row of from_numpy": lambda torch, y: torch.from_numpy(y)[0],
    "as_tensor of a column": lambda torch, y: torch.as_tensor(y[:, 1]),
    "from_dlpack of a row": lambda torch, y: torch.from_dlpack(y[0]),
    "frombuffer": lambda torch, y: torch.frombuffer(y[0], dtype=torch.float32),
    "asarray, detached": lambda torch, y: torch.asarray(y[1:]).detach()[0],
}


@pytest.fixture(scope="module")
def add() -> Call:
    return _sums(1)


@pytest.fixture(scope="module")
def several() -> Call:
    """The second of two results."""
    kernel = _sums(2)
    return lambda number: kernel(number)[1]


def _kernel(n_outputs: int) -> Kernel:
    a, b, *outputs = (ArraySpec(name, (4, 6), "float32") for name in "ABCD"[: 2 + n_outputs])
    ir = ADD.format(n=24, last=n_outputs + 1, status=0)
    return build_kernel(ir, "add", parse_target("cpu"), (a, b), outputs, workspace_bytes=64, threads=1)


def _sums(n_outputs: int) -> Call:
    kernel, zeros = _kernel(n_outputs), np.zeros((4, 6), np.float32)
    given = np.empty((4, 6), np.float32)  # always the same array: for others no spare result would be given out

    def call(number: float) -> Any:
        given[...] = number
        return kernel(given, zeros)

    return call


@pytest.fixture(scope="module")
def layer() -> Call:
    bound = made(["B"]).bind(B=np.ones((K, 9), np.float32))
    given = np.empty((M, K), np.float32)

    def call(number: float) -> Any:
        given[...] = number
        return bound(given)

    return call


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    from autosched.runtime.gpu.kernel import build_gpu_kernel

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        a, b, c = (ArraySpec(name, (32, 32), "float32") for name in "ABC")
        kernel = build_gpu_kernel(gpu_source(), opencl_target(), (a, b), (c,))
        zeros = np.zeros((32, 32), np.float32)
        yield lambda number: kernel(np.full((32, 32), number, np.float32), zeros)


def _content(held: Any) -> bytes:
    if hasattr(held, "numpy"):
        held = held.numpy()
    return np.array(held.copy() if isinstance(held, np.flatiter) else held).tobytes()


def _check(call: Call, look: Callable[[Any], Any]) -> None:
    """Each of the views is looked at after every later call."""
    held, before = [], []
    for number in range(1, CALLS + 1):
        held.append(look(call(number)))
        before.append(_content(held[-1]))
        assert [_content(each) for each in held] == before
    assert len(set(before)) == CALLS, "the results differ"


@pytest.mark.parametrize("look", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("kernel", ["add", "several", "layer"])
def test_views_on_the_processor(kernel: str, look: Callable[[Any], Any], request: pytest.FixtureRequest) -> None:
    _check(request.getfixturevalue(kernel), look)


@pytest.mark.parametrize("look", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_results_from_a_gpu(look: Callable[[Any], Any], opencl: Call) -> None:
    _check(opencl, look)


@pytest.mark.parametrize("look", TORCH_VIEWS.values(), ids=TORCH_VIEWS.keys())
def test_torch_tensors_of_numpy_results(look: Callable[[Any, Any], Any], add: Call) -> None:
    torch = pytest.importorskip("torch")
    _check(add, lambda y: look(torch, y))


def test_views_in_threads_that_share_a_kernel() -> None:
    kernel, zeros = _kernel(1), np.zeros((4, 6), np.float32)
    wrong: list[float] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        given, held = np.empty((4, 6), np.float32), []
        for step in range(300):
            number = float(1000 * seed + step)
            given[...] = number
            view = kernel(given, zeros)[rng.integers(4)] if step % 3 else kernel(given, zeros).T[1:]
            held.append((number, view))
            if len(held) > 5:
                held.pop(int(rng.integers(6)))
            wrong.extend(number for number, view in held if not (view == number).all())

    in_threads(work, range(6))
    assert not wrong
