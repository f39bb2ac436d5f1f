"""Targets: what is known of a processor from its name, and this machine."""

from __future__ import annotations

import dataclasses
import os

import pytest

from autosched.errors import TargetError
from autosched.target import CUDA_CARDS, LEVELS, GpuFacts, HostCpu, parse_target
from autosched.target import target as target_module
from autosched.target.cpu import required_features
from autosched.target.host import core_name
from tests.helpers import python

# mcpu -> (bytes of a vector, vector registers, FMA)
KNOWN = {
    "x86-64": (16, 16, False),
    "nehalem": (16, 16, False),
    "sandybridge": (32, 16, False),
    "haswell": (32, 16, True),
    "znver3": (32, 16, True),
    "skylake-avx512": (64, 32, True),
    "icelake-server": (64, 32, True),
    "znver4": (64, 32, True),
    "znver5": (64, 32, True),
    "neoverse-n1": (16, 32, True),
    "apple-m1": (16, 32, True),
}


@pytest.mark.parametrize(("mcpu", "facts"), KNOWN.items())
def test_facts_of_named_processors(mcpu: str, facts: tuple[int, int, bool]) -> None:
    target = parse_target(f"llvm -mcpu={mcpu}")
    assert (target.vector_bytes, target.n_vector_registers, target.has_fma) == facts
    assert target.kind == "cpu"
    assert target.features == ""


def test_host_runs_here_and_knows_its_caches() -> None:
    target = parse_target("cpu")
    assert target == parse_target(None) == parse_target("llvm") == parse_target("llvm -mcpu=native")
    assert target.runs_here
    assert 1 <= target.cores <= (os.cpu_count() or 1)
    assert 4096 <= target.l1_bytes <= target.l2_bytes <= target.l3_bytes
    assert target.line_bytes in (32, 64, 128, 256)
    assert target.vector_bytes in (16, 32, 64)


def test_a_processor_with_more_than_the_host_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostCpu("old", frozenset({"sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16"}), "")
    monkeypatch.setattr(target_module, "host_cpu", lambda: host)
    monkeypatch.setattr(target_module, "host_arch", lambda: "x86_64")
    assert parse_target("llvm -mcpu=nehalem").runs_here
    haswell = parse_target("llvm -mcpu=haswell")
    assert not haswell.runs_here
    assert {"avx", "avx2", "fma"} <= set(haswell.missing_features)
    assert not parse_target("llvm -mcpu=neoverse-v2").runs_here


def test_a_core_is_known_by_what_no_other_can() -> None:
    sapphire = required_features("sapphirerapids")
    assert core_name("rocketlake", sapphire | {"amx-tile"}) == "sapphirerapids"
    assert core_name("rocketlake", required_features("rocketlake")) == "rocketlake"
    assert core_name("rocketlake", required_features("rocketlake") | {"avx512fp16"}) == "rocketlake"  # others hidden
    assert core_name("graniterapids", sapphire | {"amx-fp16"}) == "graniterapids"
    assert core_name("a core of tomorrow", sapphire) == "a core of tomorrow"


def test_devices_parse_to_their_kind() -> None:
    for kind in ("cuda", "opencl"):
        target = parse_target(kind)
        assert (target.kind, target.runs_here) == (kind, False)
        assert target.gpu is not None
        assert target.fingerprint.startswith(f"{kind}-")


def test_cuda_names_a_compute_capability() -> None:
    hopper, ampere = parse_target("cuda"), parse_target("cuda -arch=sm_80")
    assert hopper == parse_target("cuda -arch=sm_90") == parse_target("cuda -arch=sm_90a")
    assert (hopper.arch, ampere.arch) == ("sm_90", "sm_80")
    assert hopper.gpu is not None
    assert ampere.gpu is not None
    assert (hopper.gpu.multiprocessors, ampere.gpu.multiprocessors) == (132, 108)
    assert ampere.gpu.shared_per_block == 163 << 10


@pytest.mark.parametrize("card", CUDA_CARDS.values(), ids=lambda card: card.arch)
def test_facts_of_cards_are_consistent(card: GpuFacts) -> None:
    assert card.max_threads_per_block % card.warp == 0
    assert card.max_threads_per_block <= card.max_threads_per_multiprocessor
    assert 48 << 10 <= card.shared_per_block <= card.shared_per_multiprocessor
    teraflops = 2e-3 * card.multiprocessors * card.fma_per_cycle_per_multiprocessor * card.clock_ghz
    assert 5 < teraflops < 150


def test_fingerprint_of_a_gpu_names_arch_device_and_facts() -> None:
    target = parse_target("cuda")
    assert "sm_90" in target.fingerprint
    assert "h200" in target.fingerprint
    assert parse_target("cuda -arch=sm_80").fingerprint != target.fingerprint
    assert target.gpu is not None
    other = target.with_gpu(dataclasses.replace(target.gpu, name="NVIDIA H100", bandwidth_bytes_s=3.35e12))
    assert other.fingerprint != target.fingerprint
    assert "h100" in other.fingerprint
    faster = target.with_gpu(dataclasses.replace(target.gpu, clock_ghz=1.5))
    assert faster.fingerprint == target.fingerprint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", ("'gpu'", "cuda")),
        ("llvm -mcpu=haswel", ("'haswel'", "haswell")),
        ("llvm -mcpu=zzzz", ("'zzzz'", "native")),
        ("llvm -O3", ("'-O3'", "-mcpu")),
        ("llvm -mcpu", ("'-mcpu'",)),
        ("cuda -arch=sm_42", ("'sm_42'", "sm_90")),
        ("cuda -mcpu=haswell", ("'-mcpu=haswell'", "-arch")),
        ("opencl -arch=sm_90", ("'-arch=sm_90'", "opencl")),
        ("'unclosed", ("unclosed",)),
        ("  ", ("cpu",)),
    ],
)
def test_errors_name_the_word_and_the_way_out(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_fingerprint_depends_on_the_processor_but_not_on_usable_cores() -> None:
    haswell = parse_target("llvm -mcpu=haswell")
    assert dataclasses.replace(haswell, cores=99).fingerprint == haswell.fingerprint
    assert parse_target("llvm -mcpu=znver2").fingerprint != haswell.fingerprint
    assert dataclasses.replace(haswell, l2_bytes=1).fingerprint != haswell.fingerprint


def test_levels_only_add() -> None:
    for level in LEVELS.values():
        if level.base is not None:
            assert level.vector_bytes >= LEVELS[level.base].vector_bytes


def test_llvm_knows_every_processor_and_feature() -> None:
    code = (
        "import llvmlite.binding as llvm; from autosched.target import cpu\n"
        "llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()\n"
        "for name, (arch, _, _) in cpu.PROCESSORS.items():\n"
        "    features = ','.join('+' + f for f in sorted(cpu.required_features(name))) if arch == 'x86_64' else ''\n"
        "    llvm.Target.from_triple(arch + '-unknown-linux-gnu').create_target_machine(cpu=name, features=features)\n"
    )
    # LLVM says on stderr that it ignores what it does not know
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "not a recognized" not in done.stderr
