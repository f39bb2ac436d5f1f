"""Ctrl-C while LLVM compiles, in the user's process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from autosched.runtime.jit import compile_interruptibly, compile_object
from autosched.target import parse_target
from tests.helpers import ROOT

HOST = parse_target("cpu")
EMPTY = "define i32 @k(ptr %args, ptr %workspace, i64 %n) {\n  ret i32 0\n}\n"
PROGRAM = """
import sys
from autosched.runtime.jit import compile_interruptibly
from autosched.target import parse_target
target = parse_target("cpu")
compile_interruptibly("", target)
n = 400_000
lines = [f"  %v{i + 1} = call i64 @llvm.smax.i64(i64 %v{i}, i64 {i * 7919 % 65521})" for i in range(n)]
text = "define i64 @f(i64 %v0) {\\n" + "\\n".join(lines) + f"\\n  ret i64 %v{n}\\n}}\\ndeclare i64 @llvm.smax.i64(i64, i64)\\n"
print("ready", flush=True)
try:
    compile_interruptibly(text, target)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
print("compiled", flush=True)
"""


def test_ctrl_c_ends_a_long_compilation_and_the_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        threading.Event().wait(0.5)
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=120)
    finally:
        child.kill()
    assert rest == "interrupted\n"
    assert child.returncode == 130


def test_the_object_is_the_same_in_any_thread() -> None:
    expected, found = compile_object(EMPTY, HOST), list[bytes]()
    thread = threading.Thread(target=lambda: found.append(compile_interruptibly(EMPTY, HOST)))
    thread.start()
    thread.join(60)
    assert [compile_interruptibly(EMPTY, HOST), *found] == [expected, expected]


def test_an_error_of_llvm_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        compile_interruptibly("no IR", HOST)
