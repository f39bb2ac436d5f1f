"""The two layouts of images compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate
from experiments.layouts import LANES, Image, channels_last, in_blocks


@pytest.mark.parametrize("case", [Image(5, 32, 16, 3), Image(3, 16, 48), Image(7, 32, 32, 3, 2, True)])
def test_layouts_agree(case: Image) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, case.padded, case.padded, case.ci), "float32")
    w = rng.standard_normal((case.taps, case.taps, *((case.co,) if case.depthwise else (case.ci, case.co))), "float32")
    blocks = np.ascontiguousarray(x.reshape(*x.shape[:3], -1, LANES).transpose(0, 3, 1, 2, 4))
    found = [
        evaluate(ComputeDAG([make(case)()]), {"X": given, "W": w})
        for make, given in ((channels_last, x), (in_blocks, blocks))
    ]
    want, got = (each[0].value for each in found)
    np.testing.assert_allclose(got.transpose(0, 2, 3, 1, 4).reshape(want.shape), want, rtol=1e-6, atol=1e-6)
