"""A process that builds kernels of networks: `python -m autosched.network.worker PARENT_PID`.

Each line of standard input is a recipe in JSON; its answer is a line of JSON on standard output, `{}` once the kernel
is in the cache, `{"error": ...}` where none can be made, `{"refused": ...}` where the cache cannot be used, and
`{"bug": ...}` with a traceback for what should not be. LLVM may end the process: then another one makes the kernel
from another candidate.
"""

from __future__ import annotations

import json
import sys
import traceback

from autosched.errors import AutoschedError
from autosched.measure.protocol import checked
from autosched.measure.worker import harden, take_pipes
from autosched.network.object_cache import keep_object
from autosched.network.recipe import NOT_BUILT, Recipe, make_kernel
from autosched.target import GpuFacts


def main() -> int:
    harden(int(sys.argv[1]))
    lines, answers = take_pipes()
    with open(lines.fileno(), encoding="utf-8", closefd=False) as stream:
        for line in stream:
            answers.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
    return 0


def _answer(job: dict[str, object]) -> dict[str, str]:
    recipe = Recipe(
        str(job["spec"]), str(job["target"]), int(str(job["threads"])), str(job["steps"]), _facts(job["gpu"])
    )
    try:
        keep_object(recipe, make_kernel(recipe, int(str(job["passed_over"]))))
    except NOT_BUILT as error:
        return {"error": str(error)}
    except AutoschedError as error:
        return {"refused": str(error)}
    except Exception:  # a bug, to be raised where somebody sees it
        return {"bug": traceback.format_exc()}
    return {}


def _facts(data: object) -> GpuFacts | None:
    if data is None:
        return None
    found: GpuFacts = checked(data, GpuFacts, "a GPU")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
