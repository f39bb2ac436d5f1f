"""The yardsticks of devices: plausible on PoCL, multiply-adds in the loop under CUDA, failures in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autosched.errors import DeviceError
from autosched.measure.gpu.rates import measure_rates
from autosched.runtime.gpu import peak
from autosched.runtime.gpu.device import DeviceFault
from autosched.runtime.gpu.devices import open_device
from autosched.runtime.gpu.tensor_pipes import pipes_of
from autosched.target import parse_target
from tests.codegen.nvcc import ptx

H200 = parse_target("cuda").gpu
assert H200 is not None


@pytest.fixture
def pocl(tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        device = open_device("opencl")
    except DeviceError as error:
        pytest.skip(str(error))
    return device


def test_rates_of_a_device_are_plausible(pocl):
    single, double = peak.measure_gpu_peak(pocl), peak.measure_gpu_peak(pocl, "float64")
    assert 1 < double < 1e6
    assert 1 < single < 1e6
    for n_bytes in (1, 100_000, 1 << 24):
        assert 1e7 < peak.measure_gpu_bandwidth(pocl, n_bytes) < 1e14
    assert pocl._allocated == 0


def test_copies_are_copies(pocl):
    import numpy as np

    from autosched.runtime.gpu.compile import compile_source

    for form in peak.ACCESSES:
        source, moved = peak.copy_source("opencl", form, 100_000)
        start = np.arange(moved // 8, dtype=np.float32)
        end = np.zeros_like(start)
        buffers = {"start": pocl.allocate(start.nbytes), "end": pocl.allocate(end.nbytes)}
        pocl.upload(buffers["start"], start)
        pocl.run(pocl.prepare(pocl.load(compile_source(source, pocl), source), source, buffers))
        pocl.download(buffers["end"], end)
        assert np.array_equal(start, end)


@pytest.mark.parametrize(("dtype", "instruction"), [("float32", "fma.rn.f32"), ("float64", "fma.rn.f64")])
def test_every_step_is_one_multiply_add(tmp_path: Path, dtype: str, instruction: str):
    for form in peak.CHAINS["cuda"]:
        source, n_flops = peak.fma_source("cuda", form, H200, dtype)
        text = ptx(source.text, "sm_90", tmp_path)
        loop = text[text.index("$L__BB0_1:") : text.index("bra")]
        in_round = form.count * peak.STEPS
        steps = len(re.findall(re.escape(instruction), loop))
        assert steps >= in_round
        assert steps % in_round == 0
        others = [line for line in loop.splitlines() if line.strip().endswith(";") and instruction not in line]
        assert len(others) < 0.03 * steps
        threads = source.launches[0].grid[0] * peak.THREADS
        assert n_flops % (2 * in_round * threads) == 0


def test_a_process_of_its_own_measures(pocl):
    rates = measure_rates("opencl", n_bytes=1 << 20)
    assert rates.device == pocl.name
    assert rates.n_bytes == 1 << 20
    assert rates.gflops["float32"] > 1
    assert rates.bandwidth > 1e7


def test_the_scripted_device_has_rates_and_counts_no_launch(tmp_path, monkeypatch):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"spec": {}, "events": [{"at": 1, "what": "crash"}, {"build": 1, "what": "crash"}]}))
    monkeypatch.setenv("AUTOSCHED_DEVICE_SCRIPT", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates = measure_rates("cuda", None)
    assert set(rates.gflops) == {"float32", *pipes_of(H200)}
    assert min(rates.gflops.values()) > 0
    assert rates.bandwidth > 0


def test_a_device_that_fails_is_named(pocl, monkeypatch):
    def refuse(*_: object) -> float:
        raise DeviceFault("launch_failure", "a launch failed: no reason")

    monkeypatch.setattr(pocl, "time", refuse)
    with pytest.raises(DeviceError, match=f"{re.escape(pocl.name)} cannot be measured: a launch failed: no reason"):
        peak.measure_gpu_peak(pocl)
    assert pocl._allocated == 0


def test_a_process_that_fails_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        DeviceError, match="peak rates of the device of nothing cannot be measured: nothing is no device"
    ):
        measure_rates("nothing")
    with pytest.raises(DeviceError, match=r"within 0\.05 s"):
        measure_rates("opencl", deadline_s=0.05)
