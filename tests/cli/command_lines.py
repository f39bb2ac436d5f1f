"""Every verb with each of its options, on every kind of subject, with sensible and senseless values: what always holds.

    python -m tests.cli.command_lines --count 500 --seed 0      a sample, all of it without --count
    python -m tests.cli.command_lines --verb bench

An exit code is a documented one and never 1; with --json there is exactly one JSON object, on the last line of stdout;
without it, whatever is refused is one sentence on stderr. Options are read from the parser, so that a new one needs a row
in VALUES.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from autosched.cli.main import VERBS, build_parser, main

CODES = {0, 2, 3, 4, 5}  # 1 is a bug of ours, 130 an interrupt
JUNK = ("", "-1", "0", "nonsense", "1e999", "-1s", "a=b", "-1,2", ".", "nothing.txt")

# Sensible values of each option beside JUNK; {d} is the folder of the subjects. A flag has none.
VALUES: Mapping[str, Sequence[str]] = {
    "--shape": ("8,8,8", "8,-8,8", "99999999999,1,1"),
    "--set": ("M=8", "width=4", "M=x"),
    "--batch": ("8",),
    "--dtype": ("float32", "int8", "float128"),
    "--weights": ("A", "B,A", "z"),
    "--precision": ("ieee", "tf32", "3xtf32"),
    "--target": ("cpu", "llvm -mcpu=haswell", "cuda", "cuda -arch=sm_80", "opencl", "tpu"),
    "--mcpu": ("haswell", "haswall"),
    "--arch": ("sm_80", "sm_1"),
    "--threads": ("1", "1,2", "100000"),
    "--size": ("n=2", "x[0]=2", "n=-2", "n=0"),
    "--sizes": ("n=2,3", "n=2,x", "M=1:9"),
    "--at": ("M=1,7", "M=20", "n=1:2"),
    "--fix": ("s=2", "s=[2]", "z=1", "s={d}/s.npy"),
    "--trials": ("1",),
    "--budget": ("1s", "1 day"),
    "--seed": ("1",),
    "--strategy": ("gain", "round-robin"),
    "--objective": ("speedup", "required:net=1ms", "required:net=", "{d}/nets.py:cost"),
    "--db": ("{d}/records.db", "{d}/new/records.db", "{d}/nets.py", "{d}"),
    "--out-dir": ("{d}/out", "{d}/nets.py", "{d}/nets.py/out"),
    "--inputs": ("{d}/in.npz", "{d}/other.npz", "{d}/nets.py", "{d}"),
    "--outputs": ("{d}/out.npz", "{d}", "{d}/gone/out.npz", "/"),
    "--as": ("variants", "graph", "groups", "memory", "dot", "ir", "steps", "passes", "llvm", "asm", "cuda", "opencl"),
    "--kind": ("so", "archive", "object", "c-header", "cuda", "cubin", "opencl"),
    "--out": ("{d}/made.so", "{d}/made.asc", "{d}/made.png", "{d}", "{d}/gone/made.so"),
    "--workload": ("matmul", "{d}/nets.py:operator", "{d}/nets.py:network"),
    "--peers": ("numpy", "torch", "onnxruntime", "torch,numpy", "openvino,torch"),
    "-n": ("1", "3"),
}
FLAGS = {
    "--json",
    "--winograd",
    "--resume",
    "--no-run",
    "--simulate",
    "--locate",
    "--onnxruntime",
    "--all",
    "--strict",
    "--help",
}
SUBJECTS = (
    *("matmul", "{d}/nets.py:operator", "{d}/nets.py:network", "{d}/net.onnx", "{d}/net.asc", "{d}/net.pt2"),
    *("1", "99", "0", "{d}/gone.onnx", "{d}/in.npz", "nothing", ""),
)
# What keeps a verb short: given where the option itself is not looked at.
QUICK: Mapping[str, Mapping[str, str]] = {
    "tune": {"--trials": "1", "--threads": "1", "--db": "{d}/records.db"},
    "bench": {"--trials": "1", "--threads": "1", "--db": "{d}/records.db", "--peers": "numpy"},
    "doctor": {"--threads": "1"},
    "run": {"--inputs": "{d}/in.npz", "--threads": "1"},
    **{verb: {"--threads": "1", "--db": "{d}/records.db"} for verb in ("explain", "verify", "show", "export")},
}
MODULE = """
import torch
from autosched import te

def network(width=5):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU()).eval(), (torch.ones(2, 3),)

def operator(N=7):
    A = te.placeholder((N,), name="A")
    return te.compute((N,), lambda i: A[i] + 1.0, name="B")

def cost(seconds):
    return sum(seconds.values())
"""


@dataclass(frozen=True)
class CommandLine:
    words: tuple[str, ...]
    verb: str
    option: str = ""

    def __str__(self) -> str:
        return " ".join(word or "''" for word in self.words)


def options_of(verb: str) -> dict[str, argparse.Action]:
    """Of a verb's parser, by their long name."""
    parser = build_parser()
    (verbs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    found: dict[str, argparse.Action] = {}
    for action in verbs.choices[verb]._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {o: a for sub in action.choices.values() for a in sub._actions for o in a.option_strings[:1]}
        found |= {
            name: action for name in action.option_strings if name.startswith("--") or len(action.option_strings) == 1
        }
    return {name: action for name, action in found.items() if name not in ("-h", "--help")}


def command_lines(verb: str) -> Iterator[CommandLine]:
    """All of a verb: each of its options alone, on each subject, with each value."""
    takes_subject = verb not in ("doctor", "db")
    actions = ("export {d}/records.jsonl", "import {d}/records.jsonl", "import {d}/nets.py", "check", "path", "dance")
    subjects = SUBJECTS if takes_subject else actions if verb == "db" else ("",)
    options = options_of(verb)
    for subject in subjects:
        head = [subject] if takes_subject else subject.split()
        quick = {o: v for o, v in QUICK.get(verb, {}).items() if o in options}
        if subject in ("matmul", "{d}/nets.py:operator") and "--shape" in options:
            quick["--shape"] = "8,8,8" if subject == "matmul" else "7"
        for option, action in options.items():
            junk = JUNK if subject in ("matmul", "{d}/net.onnx", "1") or not takes_subject else ()
            values = [""] if action.nargs == 0 else [*VALUES[option], *junk]
            rest = [word for o, v in quick.items() if o != option for word in (o, v)]
            if option in ("--set", "--batch"):
                rest = [w for o, v in quick.items() if o not in (option, "--shape") for w in (o, v)]
            for value in values:
                given = [option] if action.nargs == 0 else [option, value]
                for last in ([], ["--json"]) if option != "--json" else ([],):
                    yield CommandLine((verb, *head, *given, *rest, *last), verb, option)


def make_subjects(folder: Path, *, with_torch: bool = True) -> None:
    """The files that the command lines name."""
    import onnx
    from onnx import helper

    from autosched import api
    from tests.graph.onnx.models import model, node

    (folder / "nets.py").write_text(MODULE)
    made = model([node("Mul", ["x", "s"], ["a"]), node("Relu", ["a"], ["y"])], {"x": ["n", 3]})
    made.graph.input.append(helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []))
    made.ir_version = 10
    onnx.save(made, folder / "net.onnx")
    np.save(folder / "s.npy", np.float32(2))
    np.savez(folder / "in.npz", x=np.ones((2, 3), "float32"), s=np.float32(3))
    np.savez(folder / "other.npz", z=np.ones(4))
    api.load(folder / "net.onnx", sizes={"n": 2}, threads=1, records=False).save(folder / "net.asc")
    api.tune("matmul", shape=(8, 8, 8), trials=1, threads=1, db=folder / "records.db")
    if with_torch:
        import torch

        torch.export.save(torch.export.export(torch.nn.Linear(3, 5).eval(), (torch.ones(2, 3),)), folder / "net.pt2")


@contextlib.contextmanager
def short_measurements() -> Iterator[None]:
    """Nothing is timed for long."""
    places: Mapping[str, object] = {
        "autosched.cli.network.bench.ROUNDS": 2,
        "autosched.cli.network.bench.BLOCK_S": 0.001,
        "autosched.cli.network.bench.REST_S": 0.0,
        "autosched.cli.bench.ROUNDS": 2,
        "autosched.cli.bench.BLOCK_S": 0.001,
        "autosched.executor.profile.BUDGET_S": 0.01,
        "autosched.runtime.peak.measure_fma_gflops": lambda target, threads: 100.0 * threads,
        "autosched.runtime.peak.measure_bandwidth": lambda target, threads, nbytes: 1e10,
        "autosched.runtime.peak.fork_join_seconds": lambda threads, target: 1e-6,
    }
    with contextlib.ExitStack() as stack:
        for name, value in places.items():
            stack.enter_context(mock.patch(name, value))
        yield


def fault_of(line: CommandLine, folder: Path) -> str:
    """What does not hold of a command; empty where all does."""
    words = [word.replace("{d}", str(folder)) for word in line.words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said, told = out.getvalue().splitlines(), err.getvalue()
    if code not in CODES:
        return f"exit code {code}: {told[-400:]}"
    if "--json" in words:
        objects = [n for n, text in enumerate(said) if _is_object(text)]
        if objects != [len(said) - 1]:
            return f"JSON objects on lines {objects} of {len(said)}, exit code {code}: {told[-200:]}"
    elif code:
        errors = [text for text in told.splitlines() if text.startswith("autosched: error: ")]
        if len(errors) != 1:
            return f"{len(errors)} sentences for exit code {code}: {told[-400:]!r}"
    return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(found := json.loads(text), dict) and "schema_version" in found
    except ValueError:
        return False


def check(lines: Sequence[CommandLine], folder: Path, tell: Callable[[str], None] = lambda text: None) -> list[str]:
    """The faults of commands that run in a folder; `tell` hears of them, and of what takes long, at once."""
    faults = []
    before = os.getcwd()
    os.chdir(folder)
    try:
        for line in lines:
            begun = time.monotonic()
            if fault := fault_of(line, folder):
                faults.append(f"{line}\n    {fault}")
                tell(faults[-1])
            elif (taken := time.monotonic() - begun) > 10.0:
                tell(f"{line}\n    took {taken:.0f} s")
    finally:
        os.chdir(before)
    return faults


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="so many, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", choices=VERBS)
    args = parser.parse_args()
    verbs = [args.verb] if args.verb else VERBS
    lines = [line for verb in verbs for line in command_lines(verb)]
    if args.count is not None:
        lines = random.Random(args.seed).sample(lines, min(args.count, len(lines)))
    with tempfile.TemporaryDirectory() as name, short_measurements():
        for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
            os.environ[variable] = str(Path(name) / variable)
        make_subjects(Path(name))
        faults = check(lines, Path(name), lambda text: print(text, flush=True))
    print(f"{len(lines)} command lines, {len(faults)} with a fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run())
