"""Whole tuning sessions on the scripted device, with every fault that a GPU and its compiler have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.cli.main import main
from autosched.errors import DeviceError
from autosched.measure import FAULTS
from autosched.store import Database
from autosched.tuner.result import Result

RNG = np.random.default_rng(0)
SIZES = {"M": 24, "N": 8, "K": 16}
SPEC = {"name": "matmul", "args": SIZES, "dtype": "float32"}
FOR_EVER = 10**9


class Session:
    """`matmul` tuned on the scripted device, with a database of its own."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.script, self.db = directory / "script.json", directory / "records.db"
        patch.setenv("AUTOSCHED_DEVICE_SCRIPT", str(self.script))
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        patch.setenv("XDG_DATA_HOME", str(directory / "data"))

    def play(self, *events: dict[str, Any], **options: Any) -> None:
        self.script.write_text(json.dumps({"spec": SPEC, "events": events, **options}))

    def tune(self, trials: int, **options: Any) -> Result:
        return at.tune("matmul", settings=SIZES, target="cuda", trials=trials, db=self.db, **options)

    def count(self, counter: str) -> int:
        path = Path(f"{self.script}.{counter}")
        return path.stat().st_size if path.exists() else 0

    def recorded(self) -> tuple[str, list[str | None]]:
        """The status of the last run, and the class of each of its trials."""
        with Database(self.db) as database:
            run = database.runs()[-1]
            trials = [r for r in database.records(run.workload, run.target, run.threads) if r.run_id == run.id]
        return run.status, [r.failure for r in sorted(trials, key=lambda r: r.id)]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path, monkeypatch)


def product(result: Result) -> Any:
    """The best kernel's, with what it should be."""
    a, b = (RNG.standard_normal((SIZES[m], SIZES[n])).astype(np.float32) for m, n in ("MK", "KN"))
    return result.compile()(a, b), a @ b


def test_every_fault_in_one_session(session: Session) -> None:
    """Each costs its candidate, each that loses the context also a worker and a canary; the best is verified."""
    kernels = (
        *("illegal_address", "misaligned_address", "launch_failure", "hang", "out_of_memory", "device_lost"),
        *("crash", "launch_refused", "wrong_result"),
    )
    builds = {3: "spills", 5: "build_error", 8: "crash"}
    session.play(
        *({"kernel": 2 + 2 * n, "what": what} for n, what in enumerate(kernels)),
        *({"build": n, "what": what} for n, what in builds.items()),
        {"canary": 3, "what": "device_lost"},
    )
    result = session.tune(26)
    expected = [*kernels, "spills", "build_error", "build_error"]
    assert result.failures == {kind: expected.count(kind) for kind in sorted(expected)}
    assert (result.trials, result.failed, result.verified) == (26, len(expected), True)
    lost = sum(FAULTS[kind].respawn for kind in kernels)
    assert session.count("canary") == 1 + lost + 1  # one canary failed too: the next worker took its place
    assert session.recorded() == ("finished", [trial.failure for trial in result.records])
    assert result.best_s == pytest.approx(min(t.seconds for t in result.records if t.seconds is not None))
    np.testing.assert_allclose(*product(result), rtol=1e-5, atol=1e-5)


def test_faults_in_the_final_comparison(session: Session) -> None:
    """Who fails there is not the best; those that are left are compared."""
    session.play({"kernel": 9, "what": "illegal_address"}, {"kernel": 10, "what": "hang"})
    result = session.tune(8)
    assert (result.failures, result.verified) == ({"hang": 1, "illegal_address": 1}, True)
    (best,) = (trial for trial in result.records if trial.record_id == result.record_id)
    assert best.failure is None
    assert session.count("canary") == 3


@pytest.mark.parametrize(("event", "kept"), [({"at": 1}, 0), ({"kernel": 6}, 6), ({"kernel": 9}, 8)])
def test_device_that_stays_lost(session: Session, event: dict[str, int], kept: int) -> None:
    """The search ends, before, in or after its rounds; what was recorded stays and is where the next one begins."""
    after = {"canary": 2} if "kernel" in event else {"canary": 1}
    lost = {"what": "device_lost", "times": FOR_EVER}
    session.play({**event, **lost}, {**after, **lost})
    said = f"{kept} trials are recorded, the best with .*resume from them" if kept else "nothing was measured yet"
    with pytest.raises(
        DeviceError, match=f"the device of cuda was lost: .*the canary failed \\(device_lost\\).*{said}"
    ):
        session.tune(8)
    if not kept:
        return
    status, failures = session.recorded()
    assert (status, len(failures)) == ("failed", kept)
    assert failures.count("device_lost") == (event["kernel"] < 8)
    session.play()
    result = session.tune(10, resume=True)
    assert (result.trials, result.verified) == (10, True)


def test_the_command_ends_with_5(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.play({"at": 1, "what": "device_lost", "times": FOR_EVER})
    words = ["tune", "matmul", *(f"--set={n}={size}" for n, size in SIZES.items()), "--target", "cuda", "--trials", "4"]
    assert main([*words, "--db", str(session.db)]) == 5
    assert "the device of cuda was lost" in capsys.readouterr().err


def test_problem_beyond_the_memory(session: Session) -> None:
    session.play(memory=10_000)
    with pytest.raises(
        DeviceError, match=r"of device memory are needed \(2 sets of inputs .*0\.010 MB of scripted device"
    ):
        session.tune(4)


def test_the_roof_is_that_of_the_pipe_that_a_kernel_uses(session: Session) -> None:
    """Tensor cores where its steps have them, else single precision; whatever the clock says, it is not above."""
    spec = {"name": "matmul", "args": {"M": 64, "N": 64, "K": 64}, "dtype": "bfloat16"}
    session.script.write_text(json.dumps({"spec": spec, "events": []}))
    asked: dict[str, Any] = {"settings": spec["args"], "dtype": "bfloat16", "target": "cuda", "db": session.db}
    result = at.tune("matmul", trials=12, **asked)
    assert result.peak_gflops
    texts = {record.id: at.show(record.id, session.db, "cuda") for record in at.best("matmul", n=12, **asked)}
    kernels = {next((w for w in ("wgmma", "mma") if f"{w}." in text), None): n for n, text in texts.items()}
    assert set(kernels) & {"mma", "wgmma"}
    for used, number in kernels.items():
        facts = at.explain(number, session.db)
        assert facts["pipe"] == ("float32" if used is None else f"{used}.bfloat16")
        assert float(facts["fraction_of_roofline"]) <= 1.0
