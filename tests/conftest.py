"""Makes the packages and `tests.helpers` importable from a checkout, installed or not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

pytest.register_assert_rewrite("tests.helpers")

from autosched.runtime.gpu.opencl import ENVIRONMENT  # noqa: E402

for name, value in ENVIRONMENT.items():  # also for tests that call pyopencl themselves
    os.environ.setdefault(name, value)
