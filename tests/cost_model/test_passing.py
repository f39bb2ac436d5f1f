"""Register tiles whose outputs pass by: what is alive at a time, and how much code is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.lower import lower
from autosched.target import parse_target
from autosched.te.collapse import collapse
from autosched.te.registry import build
from cost_model import CostModel
from cost_model.analysis import analyse
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.cost_model.test_analysis import evaluate

TARGET = parse_target("llvm -mcpu=znver4")


def rows_of_depthwise() -> Sketch:
    """The sketch whose tile goes along rows, of 7 x 7 images of 96 channels."""
    dag = collapse(build("dep", (1, 7, 7, 96, 3, 1, 1))[0])
    return next(s for s in sketches(dag, TARGET, 1) if s.name == "depthwise:v2-rows/pad@inline")


def tile(sketch: Sketch, oh: int, ow: int, c: int, kh: int = 3, kw: int = 3) -> dict[str, int]:
    sizes = {"oh.r": oh, "ow.r": ow, "c.r": c, "acc.kh.u": kh, "acc.kw.u": kw}
    return {p.name: 1 for p in sketch.params} | {f"depthwise.{name}": n for name, n in sizes.items()}


@pytest.mark.parametrize(
    ("oh", "ow", "kw", "want"),
    [
        (7, 7, 3, 2 * 7 + 3),  # two rows have begun, and three outputs of the third
        (2, 7, 3, 2 * 2 + 2),  # column by column: two of them have begun, and the third
        (1, 7, 3, 3),
        (7, 1, 3, 3),
        (2, 2, 3, 4),  # no more than there are
        (7, 7, 1, 7 * 7),  # the reduction is not whole: none is complete before the end
    ],
)
def test_outputs_that_have_begun_and_are_not_complete_take_registers(oh: int, ow: int, kw: int, want: int) -> None:
    sketch = rows_of_depthwise()
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.stage == "depthwise.acc" and s.updates)
    assert evaluate([update.registers(16, 32)], tile(sketch, oh, ow, 16, kw=kw)) == [want]


def test_only_so_much_code_is_written_for_outputs_that_pass_by() -> None:
    sketch = rows_of_depthwise()
    model = CostModel([lower(sketch.state)], [[p.name for p in sketch.params]], TARGET, 1)

    def broken(oh: int, ow: int, c: int) -> tuple[str, ...]:
        sizes = tile(sketch, oh, ow, c)
        return model.broken_rules(0, np.array([sizes[p.name] for p in sketch.params]))

    assert broken(7, 7, 16) == ()  # 441 copies
    assert broken(7, 7, 32) == ("unrolled depthwise.acc",)  # 882
    assert broken(2, 3, 64) == ()
