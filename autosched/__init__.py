"""autosched turns a tensor expression into the fastest kernel that this machine can run.

Importing the package loads nothing heavy; `tune`, `compile`, `workload`, `te` and the others are loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosched import errors as errors
    from autosched import te as te
    from autosched.api import best as best
    from autosched.api import compile as compile
    from autosched.api import explain as explain
    from autosched.api import export as export
    from autosched.api import load as load
    from autosched.api import show as show
    from autosched.api import tune as tune
    from autosched.api import verify as verify
    from autosched.api import workload as workload
    from autosched.errors import AutoschedError as AutoschedError
    from autosched.executor.compile_options import CompileOptions as CompileOptions
    from autosched.executor.dynamic_model import VaryingModel as VaryingModel
    from autosched.executor.load_dynamic import load_dynamic as load_dynamic
    from autosched.executor.model import Model as Model
    from autosched.inspection.network import Explanation as Explanation
    from autosched.kernel.sizes.sized_kernel import SizedKernel as SizedKernel
    from autosched.network_tuning.background import tune_in_background as tune_in_background
    from autosched.network_tuning.estimate import plan as plan
    from autosched.network_tuning.results import NetworkResult as NetworkResult
    from autosched.runtime.gpu.arrays import DeviceArray as DeviceArray
    from autosched.runtime.gpu.arrays import empty as empty
    from autosched.runtime.gpu.arrays import to_device as to_device
    from autosched.runtime.gpu.kernel import GpuKernel as GpuKernel
    from autosched.runtime.kernel import Kernel as Kernel
    from autosched.store import Record as Record
    from autosched.target import Target as Target
    from autosched.target import parse_target as parse_target
    from autosched.tuner.policy import Policy as Policy
    from autosched.tuner.policy import SearchSetup as SearchSetup
    from autosched.tuner.result import Result as Result
    from autosched.verification.verify import Verification as Verification

__version__ = "0.1.0"

# name -> the module that has it; None: the submodule of that name
_HOMES: dict[str, str | None] = {
    "AutoschedError": "autosched.errors",
    "CompileOptions": "autosched.executor.compile_options",
    "DeviceArray": "autosched.runtime.gpu.arrays",
    "Explanation": "autosched.inspection.network",
    "GpuKernel": "autosched.runtime.gpu.kernel",
    "Kernel": "autosched.runtime.kernel",
    "Model": "autosched.executor.model",
    "NetworkResult": "autosched.network_tuning.results",
    "Policy": "autosched.tuner.policy",
    "Record": "autosched.store",
    "Result": "autosched.tuner.result",
    "SearchSetup": "autosched.tuner.policy",
    "SizedKernel": "autosched.kernel.sizes.sized_kernel",
    "Target": "autosched.target",
    "Verification": "autosched.verification.verify",
    "VaryingModel": "autosched.executor.dynamic_model",
    "best": "autosched.api",
    "compile": "autosched.api",
    "empty": "autosched.runtime.gpu.arrays",
    "errors": None,
    "explain": "autosched.inspection_api",
    "export": "autosched.inspection_api",
    "load": "autosched.network_api",
    "load_dynamic": "autosched.executor.load_dynamic",
    "parse_target": "autosched.target",
    "plan": "autosched.network_tuning.estimate",
    "show": "autosched.inspection_api",
    "te": None,
    "to_device": "autosched.runtime.gpu.arrays",
    "tune": "autosched.api",
    "tune_in_background": "autosched.network_tuning.background",
    "verify": "autosched.inspection_api",
    "workload": "autosched.api",
}

# What experiments use beside: importable, but not listed.
_FOR_EXPERIMENTS = ("Policy", "SearchSetup", "Target", "parse_target")
__all__ = ["__version__", *sorted(set(_HOMES).difference(_FOR_EXPERIMENTS))]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autosched' has no attribute {name!r}")
    home = _HOMES[name]
    module = importlib.import_module(home or f"autosched.{name}")
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
