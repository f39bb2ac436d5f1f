"""One step in a process of its own: `python -m experiments.gpu.step REQUEST`, the request as JSON.

It prints JSON lines: {"prediction": ...}, {"label": ..., "row": ...} for each row, {"summary": ...}.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from experiments.gpu.steps import BY_NAME, Row, StepRequest


def encode(request: StepRequest) -> str:
    return json.dumps(asdict(request) | {"out": str(request.out)})


def decode(text: str) -> StepRequest:
    fields = json.loads(text)
    return StepRequest(**fields | {"out": Path(fields["out"]), "words": tuple(fields["words"])})


def go(request: StepRequest, to: TextIO) -> None:
    """Raises whatever the step raises, after what it has yielded is out."""

    def send(message: dict[str, Any]) -> None:
        to.write(json.dumps(message, default=str) + "\n")
        to.flush()

    module = BY_NAME[request.step].load()
    send({"prediction": module.predict(request)})
    rows: dict[str, Row] = {}
    try:
        for label, row in module.measure(request):
            rows[label] = row
            send({"label": label, "row": row})
    finally:
        send({"summary": module.summary(rows)})


def main() -> int:
    to, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed goes to the log
    go(decode(sys.argv[1]), to)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
