"""Process of a runtime of networks: `python -m autosched.cli.network.peer_process PARENT_PID`.

Requests are lines of JSON on standard input, answers on standard output: {"op": "enter", ...} loads a network and
writes its results, {"op": "time"} times a block of runs, {"op": "export", ...} writes a torch module as ONNX. The
answer to a request that fails is {"reason": ...}.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autosched.cli.network.peers import NETWORK_PEERS, OURS, NetworkCase, NetworkRun, export_onnx, ours
from autosched.measure import timing
from autosched.measure.worker import harden, take_pipes


class NetworkProcess:
    """The network that this process has loaded, and the number of runs of a block."""

    def __init__(self) -> None:
        self._loaded: NetworkRun | None = None
        self._repeats = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if request["op"] == "time":
                return self._time(float(request["block_s"]))
            case = _case(request)
            with np.load(request["inputs"], allow_pickle=False) as file:
                inputs = [file[name] for name in file.files]
            if request["op"] == "export":
                export_onnx(case, inputs)
                return {}
            return self._enter(str(request["peer"]), case, inputs, Path(request["results"]))
        except Exception as error:  # runtimes raise classes of their own
            return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}

    def _enter(self, peer: str, case: NetworkCase, inputs: list[Any], results: Path) -> dict[str, Any]:
        start = time.perf_counter()
        self._loaded = (ours if peer == OURS else NETWORK_PEERS[peer])(case, inputs)
        outputs = self._loaded.results(self._loaded.run())
        load_s = time.perf_counter() - start
        np.savez(results, *outputs)
        return {"load_s": load_s, "version": self._loaded.version, "is_quantised": self._loaded.is_quantised}

    def _time(self, block_s: float) -> dict[str, Any]:
        """Return the seconds of a run, the mean of a block after a warm-up run."""
        assert self._loaded is not None, "enter comes before time"
        clock = timing.python_clock(self._loaded.run)
        if not self._repeats:
            self._repeats, _ = timing.calibrate(clock, block_s)
        clock(1)
        return {"seconds": clock(self._repeats) / self._repeats}


def _case(request: Mapping[str, Any]) -> NetworkCase:
    onnx, db = (None if request[name] is None else Path(request[name]) for name in ("onnx", "db"))
    return NetworkCase(
        str(request["word"]),
        dict(request["settings"]),
        dict(request["sizes"]),
        int(request["threads"]),
        onnx,
        db,
        str(request["target"]),
        tuple(map(str, request["names"])),
        dict(request["fixed"]),
    )


def main() -> int:
    harden(int(sys.argv[1]))
    gc.disable()
    lines, answers = take_pipes()
    process = NetworkProcess()
    for line in iter(lines.readline, b""):
        answers.write(json.dumps(process.answer(json.loads(line))).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
