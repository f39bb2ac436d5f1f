"""One GPU code for many sizes: on an OpenCL device and the simulated GPU, against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autosched import te
from autosched.codegen.c.names import identifier
from autosched.codegen.c.source import SIZES, GpuSource
from autosched.ir.size import Guards, evaluate, form_of
from autosched.kernel.device import find_device
from autosched.kernel.request import Request, array_specs
from autosched.kernel.task import analytic_best, make_task
from autosched.lower import lower
from autosched.runtime.gpu.devices import shared_device
from autosched.runtime.gpu.kernel import GpuKernel, LoadedCode, device_code
from autosched.runtime.simulator.device import SimulatedDevice
from autosched.schedule import steps_to_json
from autosched.te.reference.evaluate import evaluate as computed
from autosched.te.reference.evaluate import within
from autosched.tuner.definition import Workload, dag_of_sizes, define
from autosched.tuner.options import WorkloadOptions
from tests.measure.gpu_kernels import opencl_target

Sizes = Mapping[str, int]


def traced(target: str, operator: Workload, settings: Sizes, sizes: Sizes) -> tuple[Guards, GpuSource, Request]:
    """Return the code of the predicted schedule for `sizes`, and the guards of what it depends on."""
    definition = define(operator, WorkloadOptions(settings={**settings, **sizes}))
    request = Request(definition, find_device(target, None, runs=False), target)
    task, sketches = make_task(request)
    ((candidate, _),) = analytic_best(task, 1, task.source)
    steps = steps_to_json(sketches[candidate.sketch].state, task.values(candidate))
    with Guards() as guards:
        symbols = {name: guards.symbol_of_class(name, size, 0, 1 << 20) for name, size in sizes.items()}
        own = request.of(dag_of_sizes(operator, definition, symbols))
        state = own.replay(steps)
        source = own.source(lower(state, "kernel"), state.steps, {})
    assert isinstance(source, GpuSource)
    return guards, source, request


def numbered(source: GpuSource, guards: Guards, sizes: Sizes) -> GpuSource:
    values = guards.values(sizes)
    return source.with_numbers(lambda number: int(evaluate(form_of(number), values)))


def sharpened(h: int = 96, w: int = 200) -> te.Tensor:
    """Three colours times the quotient of an image and its blurred copy, which are computed in tiles of them."""
    image = te.placeholder((3, h, w), name="A")
    grey = te.compute((h, w), lambda i, j: image[0, i, j] + image[1, i, j] * 2 + image[2, i, j], name="grey")

    def quotient(i: Any, j: Any) -> Any:
        beside = [te.abs(grey[i, te.min(te.max(j + d, 0), w - 1)]) for d in (-1, 1)]
        return grey[i, j] / (beside[0] + beside[1] + 1)

    ratio = te.compute((h, w), quotient, name="ratio")
    return te.compute((3, h, w), lambda c, i, j: ratio[i, j] * image[c, i, j], name="out")


Case = tuple[Workload, dict[str, Any], list[Sizes]]
CASES: list[Case] = [
    ("matmul", {"N": 96, "K": 64}, [{"M": m} for m in (200, 77, 33, 1000)]),
    ("matmul", {}, [{"M": m, "N": n, "K": k} for m, n, k in ((200, 96, 64), (33, 132, 140))]),
    ("matmul", {"N": 64, "K": 64, "dtype": "float16"}, [{"M": m} for m in (128, 37, 161)]),
    ("softmax", {}, [{"M": m, "N": n} for m, n in ((60, 200), (40, 100), (131, 252))]),
    (sharpened, {}, [{"h": h, "w": w} for h, w in ((96, 200), (37, 53), (131, 300), (41, 67))]),
    ("conv2d", {"N": 1, "CI": 16, "CO": 32, "k": 3}, [{"H": h, "W": w} for h, w in ((40, 40), (35, 41), (97, 39))]),
]


ASYNCHRONOUS: list[Case] = [  # products of warpgroups, whose tiles the copy engine reads and writes
    ("matmul", {"M": 512, "dtype": "float16"}, [{"N": n, "K": k} for n, k in ((1024, 256), (768, 320))]),
    ("matmul", {"N": 256, "K": 256, "dtype": "float16"}, [{"M": 7000}]),  # more tiles than blocks
]


@pytest.mark.parametrize(
    ("target", "case"),
    [(kind, case) for kind in ("opencl", "cuda") for case in CASES]
    + [("cuda -arch=sm_90a", case) for case in ASYNCHRONOUS],
)
def test_one_code_for_all_sizes(target: str, case: Case) -> None:
    operator, settings, all_sizes = case
    if target == "opencl":
        opencl_target()
    guards, source, request = traced(target, operator, settings, all_sizes[0])
    assert ("TensorMap" in source.text) is (case in ASYNCHRONOUS)
    gpu: Any = shared_device("opencl") if target == "opencl" else SimulatedDevice(request.device.target.gpu)
    first = numbered(source, guards, all_sizes[0])
    code = LoadedCode(gpu, device_code(gpu, first, request.device.target), first)
    for sizes in all_sizes:
        assert guards.hold(sizes), sizes
        dag = define(operator, WorkloadOptions(settings={**settings, **sizes})).dag
        kernel = GpuKernel(code, numbered(source, guards, sizes), array_specs(dag.inputs), array_specs(dag.outputs))
        rng = np.random.default_rng(0)
        arrays = {t.name: rng.standard_normal(t.public_shape).astype(t.dtype) for t in dag.inputs}
        result = kernel(**arrays)
        for reference in computed(dag, arrays):
            assert np.all(within(reference, np.reshape(result, reference.value.shape))), sizes


def test_the_text_reads_the_table() -> None:
    guards, source, _ = traced("cuda", "matmul", {"N": 96, "K": 64}, {"M": 200})
    (launch,) = source.launches
    assert launch.arguments[-1] == SIZES
    assert "const int size_of_call_0 = sizes_of_call[0];" in source.text
    small, large = (numbered(source, guards, {"M": m}) for m in (200, 1000))
    assert (small.sizes, large.sizes) == ((200,), (1000,))
    assert 5 * small.launches[0].grid[1] == large.launches[0].grid[1]


def test_names_of_sizes_are_no_names_of_axes() -> None:
    assert identifier("size_of_call_0", set()) == "vsize_of_call_0"
