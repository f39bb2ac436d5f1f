"""Networks for devices that are elsewhere: kernels, estimates and code without one."""

from __future__ import annotations

import json

import pytest

import autosched as at
from autosched import api
from autosched.errors import UsageError
from autosched.network_tuning.estimate import plan
from tests.graph import networks

TARGETS = ["cpu", "cuda -arch=sm_90", "opencl"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_has_an_estimate_and_code(target, tmp_path):
    graph = networks.residual()
    found = plan(graph, target=target, threads=1 if target == "cpu" else None, out_dir=tmp_path)
    assert found.n_kernels == 2
    assert all(task.estimate_s > 0 and task.sketch and task.flops and task.n_bytes for task in found.tasks)
    assert found.estimate_s == pytest.approx(sum(task.total_s for task in found.tasks))
    assert sorted(task.total_s for task in found.tasks)[::-1] == [task.total_s for task in found.tasks]
    assert [path.stem for path in found.files] == ["kernel-1", "kernel-2"]
    assert all(path.read_text() for path in found.files)
    assert json.loads(json.dumps(found.to_json()))["kernels"] == 2


def test_kernels_are_those_that_are_loaded():
    graph = networks.residual()
    loaded = at.load(graph, threads=1, records=False)
    found = plan(graph, threads=1)
    assert (found.arena_bytes, found.weights_bytes) == (loaded.arena_bytes, loaded.program.weights_bytes)
    assert {task.sketch for task in found.tasks} == {task.kernel.schedule.sketch for task in loaded.tasks}


@pytest.mark.parametrize(("target", "form", "word"), [("cuda", "cuda", "__global__"), ("opencl", "opencl", "__kernel")])
def test_the_code_is_shown(target, form, word):
    text = api.show(networks.residual(), form, target=target)
    assert text.count("// conv ") == 2
    assert text.count(word) >= 2
    with pytest.raises(UsageError, match=f"a network for {target} has no code as llvm: give --target cpu"):
        api.show(networks.residual(), "llvm", target=target)


def test_groups_and_the_arena_are_those_of_the_target():
    graph = networks.parts()
    assert "from element" in api.show(graph, "groups")
    assert "from element" not in api.show(graph, "groups", target="opencl")  # which has no arrays at such places
    assert api.show(graph, "memory", target="cuda").startswith("arena of ")


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        plan(networks.residual(), threads=1, out_dir=tmp_path / "file")
