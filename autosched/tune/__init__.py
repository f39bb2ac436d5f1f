"""Tuning: the search policy, the session around it, and what crosses their borders.

    protocols   what tuning asks of search space, cost model, measurer and recorder
    population  scored rows of several sketches, and the choice of a few of them
    policy      the numbers of the search
    search      which candidates to measure next
    session     rounds, budget, resuming, the final comparison; progress: how far it is
    task        what is tuned; definition: what the user wrote; recorder: trials in the database
    callbacks   what a session tells; result: what it leaves behind

The package is callable, and `autosched.tune(...)` is `autosched.api.tune(...)`: importing a submodule binds the package
to the name `tune` of its parent, where users expect the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosched.tune.result import Result


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        """See `autosched.api.tune`."""
        from autosched.api import tune

        return tune(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
