"""A contestant in a process of its own: `python -m experiments.networks.contestant PARENT_PID`.

Requests are JSON lines as `experiments.arena` asks them: "export" writes the network as ONNX, "enter" loads it and
writes its results to NAME.npz, "time" times a block of calls, "kernels" those of ours alone. Whatever fails is answered
with its reason.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autosched.measure import timing
from experiments.arena import serve
from experiments.networks.contestants import MAKERS, Entrance, Loaded, export

MOST = 160  # characters of a reason
LONG_S = 1.0  # a call that takes longer needs none before it that warms up


@dataclass
class Contestant:
    """What this process has loaded, how many calls make a block, and how long one took when that was found."""

    loaded: Loaded | None = None
    repeats: int = 0
    call_s: float = 0.0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a request; {"reason": ...} for whatever goes wrong: a runtime's errors are of any class."""
        try:
            match request["op"]:
                case "export":
                    return export(entrance_of(request))
                case "enter":
                    return self.enter(request)
                case "time":
                    return self.sample(float(request["block_s"]))
                case "kernels":
                    return self.kernels(int(request["rounds"]), float(request["block_s"]))
            return {"reason": f"there is no {request['op']!r}"}
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return {"reason": text.replace(f"{request.get('directory')}/", "")[:MOST]}

    def enter(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, entrance = request["name"], entrance_of(request)
        self.loaded = MAKERS[name](entrance)
        np.savez(entrance.directory / f"{name}.npz", *self.loaded.arrays())
        return dict(self.loaded.facts)

    def sample(self, block_s: float) -> dict[str, Any]:
        """Seconds of one call, over a block after a call that warms up; of a long one when it is first asked, that by
        which the block was found."""
        clock = self.clock()
        if not self.repeats:
            self.repeats, self.call_s = timing.calibrate(clock, block_s)
            if self.call_s > LONG_S:
                return {"seconds": self.call_s}
        if self.call_s <= LONG_S:
            clock(1)
        return {"seconds": clock(self.repeats) / self.repeats}

    def kernels(self, rounds: int, block_s: float) -> dict[str, Any]:
        from experiments.networks.kernels import facts_of

        assert self.loaded is not None
        return facts_of(self.loaded.model, self.clock(), rounds, block_s / 10)

    def clock(self) -> timing.Clock:
        assert self.loaded is not None, "enter comes before time"
        return timing.python_clock(self.loaded.run)


def entrance_of(request: Mapping[str, Any]) -> Entrance:
    network, batch, threads, reduced = (request[name] for name in ("network", "batch", "threads", "reduced"))
    return Entrance(network, batch, threads, reduced, Path(request["directory"]), float(request["tuning_s"]))


def main() -> int:
    gc.disable()
    contestant = Contestant()
    serve(lambda request, _: contestant.answer(request))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
