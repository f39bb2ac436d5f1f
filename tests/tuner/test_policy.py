from typing import Any

import pytest

from autosched.errors import UsageError
from autosched.tuner.policy import FULL, Policy, SearchSetup


def test_what_is_left_out_is_what_tuning_does() -> None:
    assert SearchSetup() == SearchSetup(policy=FULL, narrow=None, measure=True, started=None)
    assert SearchSetup(Policy(random=True)).policy.random


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "full"}, r"policy must be a Policy \(autosched.tuner.policy\), got 'full'"),
        ({"narrow": 3}, "narrow must be a function of sketches, got 3"),
        ({"measure": "no"}, "measure must be True or False, got 'no'"),
        ({"started": "now"}, "started must be seconds on time.monotonic, got 'now'"),
    ],
)
def test_values_of_another_kind_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SearchSetup(**wrong)
