"""Where the tasks of a network are tuned: one workshop, one database, one clock for the sessions of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autosched.measure import Measurer, Workshop, make_problem
from autosched.network.task_search import TRIALS, Begun
from autosched.network.tasks import NetworkTask
from autosched.session.device import Device
from autosched.session.roofline import LARGEST, SMALLEST, Roof, compulsory_bytes, measure_roof
from autosched.session.task import make_task, start_run
from autosched.store import Database
from autosched.tuner.progress import Stopwatch
from autosched.tuner.room import check_room
from autosched.tuner.session import Settings, begin


@dataclass
class Place:
    """What the sessions of a network's tasks share. `watch` has the budget of all of them."""

    device: Device
    database: Database
    workshop: Workshop
    scratch: Path
    watch: Stopwatch
    seed: int
    resume: bool
    n_begun: int = 0
    peaks: dict[str, float] = field(default_factory=dict)  # GFLOP/s by type
    bandwidths: dict[int, float] = field(default_factory=dict)  # bytes a second, by how many are read

    def begin(self, task: NetworkTask) -> Begun:
        """Workers, data, sketches and records of a task. Raises UsageError where there is no room for its data."""
        request = task.request
        request.check()
        directory = self.scratch / str(self.n_begun)
        self.n_begun += 1
        directory.mkdir(mode=0o700)
        dag, dtype = request.problem.dag, request.problem.dtype
        check_room(dag, directory)
        measurer = Measurer(make_problem(dag, directory, self.seed), self.workshop)
        made, sketches = make_task(request)
        recorder = start_run(self.database, request, made, sketches, self.seed, self.resume)
        settings = Settings(TRIALS, self.watch.budget_s, self.seed)
        hardware = self.device.hardware
        session = begin(
            made, settings, measurer, recorder, self.watch,
            read_peak=lambda: hardware.peak(self.device, dtype, measurer),
        )  # fmt: skip
        return Begun(session, recorder.steps)

    def bound_s(self, task: NetworkTask) -> float:
        """The least seconds of a task, by its arithmetic and by the bytes that it reads and writes at least."""
        problem = task.request.problem
        n_bytes = compulsory_bytes(problem.dag)
        return self._roof(n_bytes, problem.dtype).seconds(problem.dag.flops, n_bytes)

    def _roof(self, n_bytes: int, dtype: str) -> Roof:
        """As measured now, the bandwidth once for all sizes of about so many bytes."""
        size = min(max(1 << (n_bytes.bit_length() - 1), SMALLEST), LARGEST)
        if dtype not in self.peaks:
            found = self.device.hardware.roof(self.device, size, dtype)
            assert found is not None, "the network runs on this machine"
            self.peaks[dtype], self.bandwidths[size] = found.flops / 1e9, found.bandwidth
        if size not in self.bandwidths:
            target, threads = self.device.target, self.device.threads
            self.bandwidths[size] = measure_roof(target, threads, size, self.peaks[dtype]).bandwidth
        return Roof(1e9 * self.peaks[dtype], self.bandwidths[size])
