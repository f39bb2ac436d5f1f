"""The limits of a candidate on a CPU, each at its last good value and at the first bad one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autosched.ir.expr import Param
from autosched.ir.stmt import Func, Seq
from cost_model.analysis.statements import analyse
from cost_model.cpu.legality import Rule, rules
from cost_model.cpu.machine import machine
from tests.cost_model import nests
from tests.ir.values import value_of


def rules_of(func: Func, threads: int = 1) -> tuple[Rule, ...]:
    return rules(analyse(func), machine(nests.TARGET, threads))


def broken(found: Sequence[Rule], **values: int) -> set[str]:
    at = {Param(name): value for name, value in values.items()}
    return {r.name for r in found if not value_of(r.holds, at)}


MATMUL = nests.matmul(2048, 2048, 2048)
PACKED = nests.packed_matmul(64, 65536, 1024)
COPIES = {"unrolled C", "unrolled C.init", "unrolled C.back"}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"mr": 14, "nr": 32}, set()),  # 28 accumulators
        ({"mr": 28, "nr": 16}, set()),
        ({"mr": 14, "nr": 33}, {"registers"}),  # a third vector for one lane
        ({"mr": 29, "nr": 16}, {"registers"}),
        ({"mr": 682, "nr": 16}, {"registers"}),  # 1 + 3 + 2 instructions for each copy: 4092
        ({"mr": 683, "nr": 16}, {"registers", "instructions"}),  # 4098
        ({"mr": 1024, "nr": 16}, {"registers", "instructions"}),
        ({"mr": 1025, "nr": 16}, {"registers", "instructions"} | COPIES),
        ({"mr": 1, "nr": 1024 * 16}, {"registers"}),  # more than there are columns: 128 vectors
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)  # fmt: skip
def test_code_and_registers(values: dict[str, int], names: set[str]) -> None:
    assert broken(rules_of(MATMUL), mc=1, nc=1, kc=1, **values) == names


@pytest.mark.parametrize(
    ("kc", "names"),
    [(32, set()), (33, {"local bytes"}), (16384, {"local bytes"}), (16385, {"local bytes", "workspace bytes"})],
)
def test_private_panels(kc: int, names: set[str]) -> None:
    assert broken(rules_of(PACKED), mr=4, nr=32, kc=kc) == names


def test_each_thread_has_its_panel() -> None:
    found = rules_of(nests.packed_matmul(64, 65536, 1024), threads=4)
    assert broken(found, mr=4, nr=32, kc=4096) == {"local bytes"}
    assert broken(found, mr=4, nr=32, kc=4097) == {"local bytes", "workspace bytes"}


def test_large_tensors_may_have_more_scratch() -> None:
    """Twice what inputs and outputs take, here 2.1 GB for the most part of B."""
    func = nests.packed_matmul(64, 65536, 8192)
    parameters = 4 * (64 * 8192 + 8192 * 65536 + 64 * 65536)
    most = 2 * parameters // (4 * 65536)  # columns of panels
    found = rules_of(func)
    assert broken(found, mr=4, nr=32, kc=most) == {"local bytes"}
    assert broken(found, mr=4, nr=32, kc=most + 1) == {"local bytes", "workspace bytes"}


def test_a_program_of_many_stages_may_have_as_many_instructions() -> None:
    """Twice those that it has where nothing is unrolled."""
    bodies = tuple(nests.matmul(64, 64, 64).body for _ in range(1000))
    func = replace(nests.matmul(64, 64, 64), body=Seq(bodies))
    found, tile = rules_of(func), {"mc": 1, "nc": 1, "kc": 1, "nr": 16}
    assert "instructions" not in broken(found, mr=2, **tile)
    assert "instructions" in broken(found, mr=3, **tile)


def test_rules_that_may_be_judged_nest_by_nest() -> None:
    assert {r.name for r in rules_of(PACKED) if r.whole} == {"local bytes", "workspace bytes", "instructions"}
    assert "local bytes" not in {r.name for r in rules_of(MATMUL)}, "what always holds is no rule"
