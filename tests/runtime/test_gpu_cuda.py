"""The CUDA paths of kernels and arrays by each driver, on a stand-in for libcuda in host memory, which writes down what it
is told.

Every case is a text that runs in a process of its own, with the stand-in on the library path and the names of
`cuda_session` at hand. What follows the mark -- in the log is compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from autosched.codegen.c.source import GpuSource, Launch
from autosched.errors import DeviceError
from autosched.runtime.gpu.cuda_driver import dynamic_shared_bytes
from autosched.runtime.gpu.pycuda import PyCudaDevice

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = """
import gc
import numpy as np
import autosched as at
from autosched.errors import DeviceError, UsageError
from autosched.runtime.gpu import dlpack
from autosched.runtime.gpu.compile import DeviceCode
from autosched.runtime.gpu.devices import shared_device
from tests.runtime.cuda_session import *
k = kernel()
a, b = device_arrays()
log("--")
"""


@dataclass(frozen=True)
class Stub:
    """The directory of the stand-in, and the driver that uses it."""

    directory: Path
    driver: str


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the stand-in, with an empty package pycuda, of which the driver calls nothing."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("cuda")
    library, source = directory / "libcuda.so.1", Path(__file__).with_name("stub_cuda.c")
    command = [compiler, "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    (directory / "pycuda").mkdir()
    for name in ("__init__.py", "driver.py"):
        (directory / "pycuda" / name).touch()
    return directory


@pytest.fixture(params=["cuda-core", "pycuda"])
def stub(libcuda: Path, request: pytest.FixtureRequest) -> Stub:
    if request.param == "cuda-core":
        pytest.importorskip("cuda.bindings")
    return Stub(libcuda, request.param)


def play(stub: Stub, text: str, **environment: str) -> tuple[list[str], str]:
    """(the log after the mark, what was printed)"""
    path = os.pathsep.join([str(ROOT), str(stub.directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    search = {"LD_LIBRARY_PATH": str(stub.directory), "PYTHONPATH": path, "AUTOSCHED_CUDA_DRIVER": stub.driver}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + text],
        env={**os.environ, **search, **environment},
        cwd=stub.directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.partition("--\n")[2].splitlines(), done.stdout


OWN = "0x20"  # the stream that the stand-in makes


def test_arrays_of_the_device_stay_there(stub: Stub) -> None:
    log, _ = play(stub, """
c = k(a, b)
log("++")
np.testing.assert_array_equal(c.numpy(), X + Y)
""")  # fmt: skip
    assert log[:3] == ["allocate 256", f"launch 2 1 1  32 1 1  0  {OWN}", "++"]
    assert log[3:5] == ["download 256", f"synchronise {OWN}"]


def test_numpy_arrays_go_there_and_back(stub: Stub) -> None:
    log, _ = play(stub, """
np.testing.assert_array_equal(k(X, Y), X + Y)
log("++")
""")  # fmt: skip
    words = [line.split()[0] for line in log[: log.index("++")] if not line.startswith("synchronise")]
    assert words == ["allocate"] * 3 + ["upload"] * 2 + ["launch", "download"] + ["free"] * 3


def test_the_callers_stream(stub: Stub) -> None:
    """Behind what was queued before on the device's own; what comes later waits for it, each once."""
    log, _ = play(stub, """
class Torch: cuda_stream = 0x99
class CuPy: ptr = 0x99
class Core:
    def __cuda_stream__(self): return (0, 0x99)
c = k(a, b)
d = at.empty(SHAPE)
log("++")
k(c, b, out=d, stream=0x99)
k(c, b, out=d, stream=Torch())
k(c, b, out=d, stream=CuPy())
k(c, b, out=d, stream=Core())
k(c, b, out=d, stream=0)
np.testing.assert_array_equal(d.numpy(), X + 2 * Y)
""")  # fmt: skip
    log = log[log.index("++") + 1 :]
    there, default = "launch 2 1 1  32 1 1  0  0x99", "launch 2 1 1  32 1 1  0  0x1"
    assert log[:9] == [
        *(f"record 3 {OWN}", "wait 3 0x99", there, "record 4 0x99"),
        *(there, "record 5 0x99", there, "record 6 0x99", there),
    ]
    assert log[9:14] == ["record 7 0x99", "wait 7 0x1", default, "record 8 0x1", f"wait 8 {OWN}"]


def test_default_streams_of_threads_are_different_ones(stub: Stub) -> None:
    """They have the same handle."""
    log, _ = play(
        stub,
        """
import threading
k = kernel(workspace=(("T", 4096),))
for _ in range(2):
    thread = threading.Thread(target=k, args=(a, b), kwargs={"stream": 2})
    thread.start()
    thread.join()
""",
    )
    first, second = (n for n, line in enumerate(log) if line == "launch 2 1 1  32 1 1  0  0x2")
    event = log[first + 1].split()[1]
    assert log[first + 1] == f"record {event} 0x2"
    assert f"wait {event} 0x2" in log[first:second]


def test_streams_that_are_none(stub: Stub) -> None:
    _, said = play(stub, """
for stream in ("main", 1.5, True, -1):
    refused(UsageError, k, a, b, stream=stream)
""")  # fmt: skip
    assert said.count("stream must be the number of a CUDA stream") == 4


def test_array_interface_with_its_owners_stream(stub: Stub) -> None:
    """The launch runs on the owner's stream; nothing has to wait, nothing is copied."""
    log, _ = play(stub, """
x, y, out = (Interface(aligned(m), stream=0x77) for m in (X, Y, 0 * X))
assert k(x, y, out=out) is out
np.testing.assert_array_equal(out.array, X + Y)
""")  # fmt: skip
    assert log[0] == "launch 2 1 1  32 1 1  0  0x77"
    assert not [line for line in log if line.startswith(("wait", "upload", "allocate", "synchronise"))]


def test_owners_on_two_streams_wait_for_one_another(stub: Stub) -> None:
    log, _ = play(stub, """
x, y, out = Interface(aligned(X), stream=0x77), Interface(aligned(Y), stream=0x88), Interface(aligned(X), stream=0x77)
k(x, y, out=out)
""")  # fmt: skip
    launch = log.index("launch 2 1 1  32 1 1  0  0x77")
    assert log[:launch] == ["record 3 0x88", "wait 3 0x77"]
    after = [line for line in log[launch + 1 :] if line.startswith(("record", "wait"))]
    assert after[-1].startswith("wait")
    assert after[-1].endswith("0x88")
    assert f"record {after[-1].split()[1]} 0x77" in after


def test_dlpack_gets_our_stream_and_is_waited_for(stub: Stub) -> None:
    """Who owns the tensors cannot be told when the kernel is done, so the call waits."""
    log, _ = play(stub, """
x, y, out = Tensor(aligned(X)), Tensor(aligned(Y), old=True), Tensor(aligned(X))
k(x, y, out=out)
np.testing.assert_array_equal(out.array, X + Y)
k(x, y, out=out, stream=0x99)
gc.collect()
assert not dlpack._exported
""")  # fmt: skip
    assert log[:5] == ["dlpack 32"] * 3 + [f"launch 2 1 1  32 1 1  0  {OWN}", f"synchronise {OWN}"]
    assert log[5:9] == ["dlpack 153"] * 3 + ["launch 2 1 1  32 1 1  0  0x99"]
    assert not [line for line in log[9:] if line.startswith("synchronise")]


def test_torch_tensors_in_and_out(stub: Stub) -> None:
    log, _ = play(stub, """
Torch = stand_in_for_torch(0)
x, y = Torch(aligned(X)), Torch(aligned(Y))
out = k(x, y)
assert type(out) is Torch
np.testing.assert_array_equal(out.array, X + Y)
word, array = k(x, y, stream=0x99)
assert word == "from_dlpack"
np.testing.assert_array_equal(array.numpy(), X + Y)
assert isinstance(k(x, b), at.DeviceArray)
""")  # fmt: skip
    launches = [line.split()[-1] for line in log if line.startswith("launch")]
    assert launches == ["0x1", "0x99", "0x1"]  # torch's current stream is CUDA's default one


def test_torch_tensors_at_a_glance(stub: Stub) -> None:
    """They are asked for no interface where they fit; where one does not, that says why."""
    log, said = play(stub, """
Torch = stand_in_for_torch(0x99)
x, y, out = Torch(aligned(X)), Torch(aligned(Y)), Torch(aligned(0 * X))
assert k(x, y, out=out) is out
np.testing.assert_array_equal(out.array, X + Y)
c = k(x, b, out=at.empty(SHAPE))
np.testing.assert_array_equal(c.numpy(), X + Y)
m = network()
for _ in range(3):
    np.testing.assert_array_equal(m(x, out=out).array, X + 200)
log("++")
refused(UsageError, k, Torch(X.T), y)
refused(UsageError, k, x, Torch(aligned(Y[:4])))
refused(UsageError, k, x, y, out=x)
class Lazy(Torch):
    pass
np.testing.assert_array_equal(k(Lazy(aligned(X)), y).array, X + Y)
""")  # fmt: skip
    mark = log.index("++")
    assert "asked" not in log[:mark]
    assert "asked" in log[mark:]
    assert [line.split()[-1] for line in log[:mark] if line.startswith("launch")][:2] == ["0x99", "0x99"]
    assert [
        words in line
        for words, line in zip(("not dense", "must be float32[8, 8]", "overlaps A"), said.splitlines(), strict=True)
    ] == [True] * 3


def test_calls_of_a_network_share_an_event(stub: Stub) -> None:
    """One for all calls on streams of callers, as each call comes after the one before it."""
    log, _ = play(stub, """
Torch = stand_in_for_torch(0x99)
x, y, out = Torch(aligned(X)), Torch(aligned(Y)), Torch(aligned(0 * X))
m = network()
log("++")
for _ in range(3):
    m(x, out=out)
np.testing.assert_array_equal(m(X), X + 200)
""")  # fmt: skip
    log = log[log.index("++") :]
    events = {line.split()[1] for line in log if line.startswith("record") and line.endswith("0x99")}
    assert len(events) == 1
    assert f"wait {events.pop()} {OWN}" in log


def test_our_arrays_for_others(stub: Stub) -> None:
    """Both protocols: same memory, in order behind what is queued, alive as long as somebody uses it."""
    log, said = play(stub, """
from tests.runtime.test_dlpack import Consumer
c = k(a, b, stream=0x99)
form = c.__cuda_array_interface__
assert (form["shape"], form["typestr"], form["strides"], form["version"], form["stream"]) == (SHAPE, "<f4", None, 3, 0x20)
log("++")
assert c.__dlpack_device__() == (2, 0)
consumer = Consumer(c.__dlpack__(stream=0x55))
assert consumer.word(0) == form["data"][0]
assert dlpack.read_capsule(c.__dlpack__(stream=-1, max_version=(1, 1))).shape == SHAPE
refused(BufferError, c.__dlpack__, stream=0)
refused(BufferError, c.__dlpack__, dl_device=(2, 1))
assert dlpack.read_capsule(c.__dlpack__(copy=True)).address != form["data"][0]
assert dlpack.read_capsule(c.__dlpack__(dl_device=(1, 0))).device == dlpack.CPU
del c
gc.collect()
log("given back")
consumer.give_back()
log("==")
""")  # fmt: skip
    assert "the stream 0 is ambiguous" in said
    assert "not on (2, 1)" in said
    mark = log.index("++")
    assert log[mark - 1] == f"wait 3 {OWN}"
    assert [line.split()[0] for line in log[mark + 1 : mark + 3]] == ["record", "wait"]
    assert log[mark + 2].endswith("0x55")
    given = log.index("given back")
    assert log[given + 1 : given + 3] == ["free 256", "=="]


def test_round_trip_through_another_library(stub: Stub) -> None:
    _, _ = play(stub, """
x = at.to_device(Tensor(aligned(X)))
y = at.to_device(Interface(aligned(Y), stream=0x77))
assert isinstance(x, at.DeviceArray) and isinstance(y, at.DeviceArray)
np.testing.assert_array_equal(k(x, y).numpy(), X + Y)
np.testing.assert_array_equal(at.to_device(Tensor(aligned(X)), device="cpu"), X)
frozen = at.to_device(Interface(aligned(X), data=(aligned(X).ctypes.data, True)))
assert frozen.__cuda_array_interface__["data"][1] is True
refused(BufferError, frozen.__dlpack__)
refused(UsageError, k, a, b, out=frozen)
""")  # fmt: skip


REFUSED = {
    "another dtype": ("Interface(X.astype('int32'))", r"input A must be float32[8, 8], but got int32[8, 8]"),
    "another shape": ("Tensor(aligned(X[:4]))", "input A must be float32[8, 8], but got float32[4, 8]"),
    "columns": ("Interface(X.T)", "input A is not dense and row-major (its strides are (4, 32) bytes); give a contig"),
    "misaligned": (
        "Interface(X, data=(aligned(X).ctypes.data + 4, False))",
        "begins at an address that is no multiple of 16 bytes",
    ),
    "masked": (
        "Interface(X, mask=X)",
        "A is a tests.runtime.cuda_session.Interface that cannot be shared: it has a mask",
    ),
    "other GPU": (
        "Tensor(X, (2, 1))",
        'A is a tests.runtime.cuda_session.Tensor on cuda:1, but the kernel runs on cuda:0; give at.to_device(A, device="cuda")',
    ),
    "other vendor": ("Tensor(X, (10, 0))", "on DLPack device 10:0, but the kernel runs on cuda:0"),
    "host": ("X", 'A is a numpy.ndarray in host memory, but B is on cuda:0; give at.to_device(A, device="cuda")'),
}


def test_what_does_not_fit_is_refused(stub: Stub) -> None:
    text = "\n".join(f"refused(UsageError, k, {value}, b)" for value, _ in REFUSED.values())
    log, said = play(
        stub, text + "\nrefused(UsageError, k, a, b, out=a)\nrefused(UsageError, at.to_device, Tensor(X, (2, 1)))"
    )
    for name, (line, (_, words)) in zip(REFUSED, zip(said.splitlines(), REFUSED.values(), strict=False), strict=False):
        assert words in line, name
    assert "output C overlaps A in memory" in said
    assert "on cuda:1 cannot be accessed from this process" in said
    assert not [line for line in log if line.startswith("launch")]


def test_workspace_is_taken_once(stub: Stub) -> None:
    log, said = play(stub, """
k = kernel(workspace=(("T", 4096),))
k(a, b), k(a, b)
refused(DeviceError, kernel(workspace=(("T", 1 << 40),)), a, b)
refused(DeviceError, at.empty, (1 << 34,))
""")  # fmt: skip
    assert log.count("allocate 4096") == 1
    assert "workspace T 1099.51 GB), but 1.07 GB of the 1.07 GB of stub device are free" in said
    assert "68.72 GB of device memory are needed (float32[17179869184] 68.72 GB)" in said


def test_a_network_is_captured_at_its_second_call_with_the_same_arrays(stub: Stub) -> None:
    """Each set of arrays has a graph of its own, which holds its pointers; what is queued waits for nothing."""
    log, _ = play(stub, """
m = network()
log("first")
for turn in range(3):
    assert (m(turn * X) == turn * X + 200).all()
    log("next")
x, y = at.to_device(Y), at.empty(SHAPE)
for turn in range(3):
    m(x, out=y)
log("queued")
assert (y.numpy() == Y + 200).all()
assert (m(X) == X + 200).all()
""")  # fmt: skip
    parts = " ".join(log).split("first ")[1].split("next")
    assert [part.count("launch") for part in parts] == [2, 2, 0, 4]
    assert [part.count("graph of 2") for part in parts] == [0, 1, 1, 3]
    assert [part.count("upload") for part in parts] == [1, 1, 1, 2]
    queued = parts[3].split("queued")[0]
    assert queued.count("synchronise") == queued.count("upload")  # which waits, and nothing else


def test_fault_that_loses_the_context_is_one_clear_error(stub: Stub) -> None:
    log, said = play(stub, """
bad = kernel("illegal")
c = bad(a, b)
refused(DeviceError, c.numpy)
refused(DeviceError, k, X, Y)
refused(DeviceError, k, a, b)
del c
""")  # fmt: skip
    lines = said.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in line
        assert line.endswith("this process cannot use the device any more, start it again")
    assert "Traceback" not in "\n".join(log)


def test_current_device_of_the_thread_stays(stub: Stub) -> None:
    """Another library may have made another device current; a finaliser meets it as well."""
    log, _ = play(
        stub,
        """
from cuda.bindings import driver as cu
cu.cuCtxSetCurrent(cu.CUcontext(0x70))
c = k(a, b)
np.testing.assert_array_equal(c.numpy(), X + Y)
other = kernel()
x = at.to_device(X)
del c, x, other
gc.collect()
assert int(cu.cuCtxGetCurrent()[1]) == 0x70
""",
    )
    assert log.count("free 256") == 2
    assert "unloaded" in log


def test_the_driver_marshals_what_the_api_wants(stub: Stub) -> None:
    """Without a kernel object between: memory, patterns, shared memory beyond the static limit, graphs, faults."""
    log, said = play(
        stub,
        r"""
from dataclasses import replace
from autosched.runtime.gpu.device import DeviceFault
d, source = shared_device("cuda"), k.source
def faulty(function, *args):
    try: function(*args)
    except DeviceFault as fault: print(fault.kind, fault)
    else: raise AssertionError("no fault")
facts = d.facts()
assert (facts.arch, facts.multiprocessors, facts.shared_per_block) == ("sm_90", 132, 232448)
log("++")
memory = {name: d.allocate(1 << 16) for name in "ABC"}
def loaded(**changed):
    launch = replace(source.launches[0], **changed)
    text = "__global__ void add(float* A) { extern __shared__ float s[]; }" if launch.shared_bytes else ""
    made = replace(source, text=text, launches=(launch,))
    return d.prepare(d.load(DeviceCode(b"\x7fELF"), made), made, memory)
got = np.zeros(8, np.uint16)
d.fill(memory["A"], b"\xfb\x7f", 0, 64), d.fill(memory["A"], b"\xa5", 2, 2)
d.copy(memory["B"], memory["A"]), d.download(d.view(memory["B"], 2, 16), got)
assert got.tolist() == [0xA5A5] + [0x7FFB] * 7
call = loaded(shared_bytes=64 << 10)
d.run(call)
d.upload(memory["A"], X), d.upload(memory["B"], Y)
other = loaded()
assert abs(d.time([call, other], 3) - 3e-5) < 1e-9
assert abs(d.time([call, other], 1200) - 1.2e-2) < 1e-6
d.run(d.prepare(d.load(DeviceCode(b"\x7fELF"), source), source, memory))
d.download(memory["C"], got.view(np.float32))
faulty(d.allocate, 1 << 40)
faulty(d.load, DeviceCode(b"text"), source)
faulty(d.load, DeviceCode(b"\x7fELF"), replace(source, launches=(replace(source.launches[0], kernel="other"),)))
faulty(d.run, loaded(block=(2048, 1, 1)))
""",
    )
    assert "attribute 8 65536" in log
    assert f"launch 2 1 1  32 1 1  65536  {OWN}" in log
    graphs = [int(line.split()[-1]) for line in log if line.startswith("graph")]
    assert graphs[0] == 3
    assert sum(graphs[1:]) == 1200
    kinds = [line.split()[0] for line in said.splitlines()]
    assert kinds == ["out_of_memory", "build_error", "build_error", "launch_refused"]
    assert "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" in said
    assert "the driver is of CUDA 13.0" in said


def test_tensor_maps_are_made_for_the_buffers_of_a_launch(stub: Stub) -> None:
    """At a multiple of 64, with a bit off where the tensor is small and the driver of CUDA 13.1 or before."""
    log, said = play(
        stub,
        r"""
from dataclasses import replace
from autosched.codegen.c.source import PixelBox, TensorMap
from autosched.runtime.gpu.device import DeviceFault
d, source = shared_device("cuda"), k.source
memory = {name: d.allocate(1 << 16) for name in "ABC"}
d.upload(memory["A"], X), d.upload(memory["B"], Y)
tiled = TensorMap("map_A", "A", "float32", (8, 8), (32,), (8, 4), 32, (1, 2))
image = TensorMap("map_B", "B", "int8", (16, 4, 4, 1), (16, 1 << 16, 1 << 20), PixelBox((-1, -2), (0, 1), 16, 7))
launch = replace(source.launches[0], kernel="mapped", arguments=(tiled, image, "C"))
def bound(memory, **changed):
    made = replace(source, launches=(replace(launch, **changed),))
    return d.prepare(d.load(DeviceCode(b"\x7fELF"), made), made, memory)
call = bound(memory)
d.run(call)
got = np.zeros((8, 8), np.float32)
d.download(memory["C"], got)
np.testing.assert_array_equal(got, X + Y)
assert abs(d.time([call], 3) - 3e-5) < 1e-9
for changed, there in (({"arguments": (replace(tiled, box=(16, 300)),) * 3}, memory),
                       ({}, memory | {"A": d.view(memory["A"], 8, 1 << 15)})):
    try: bound(there, **changed)
    except DeviceFault as fault: print(fault.kind, fault)
""",
    )
    encoded = [line for line in log if line.startswith("encode")]
    assert encoded[0] == "encode 0 of type 7, modes 0 1 3 0: 8/1 8/2 +32 [8] [4]"
    assert encoded[1].startswith("encode 0 of type 0, modes 0 0 3 0: 16/1 4/1 4/1 1/1 +16 +65536 +1048576")
    assert encoded[1].endswith("[-1 -2 to 0 1] 16 7")
    assert log.count("map 0 has 100000") == 4  # once by itself, three times in a graph
    assert log.count("map 1 has 300000") == 4
    assert "launch_refused no tensor map map_A of A can be encoded: boxes have 1 to 256 elements" in said
    assert "launch_refused no tensor map map_A of A can be encoded: it must begin at a multiple of 16 bytes" in said


def test_the_next_launch_of_a_call_may_begin_early(stub: Stub) -> None:
    log, _ = play(
        stub,
        r"""
from dataclasses import replace
d, source = shared_device("cuda"), k.source
first = source.launches[0]
made = replace(source, launches=(first, replace(first, arguments=("C", "B", "A"), is_early=True)))
memory = {name: d.allocate(1 << 16) for name in "ABC"}
d.upload(memory["A"], X), d.upload(memory["B"], Y)
call = d.prepare(d.load(DeviceCode(b"\x7fELF"), made), made, memory)
d.run(call)
got = np.zeros((8, 8), np.float32)
d.download(memory["A"], got)
np.testing.assert_array_equal(got, X + 2 * Y)
d.time([call], 2)
""",
    )
    launches = [line for line in log if line.startswith(("early", "launch"))]
    one = f"launch 2 1 1  32 1 1  0  {OWN}"
    assert launches == [one, "early 6 1", one] * 3
    assert "graph of 4" in log


def test_no_device(stub: Stub) -> None:
    with pytest.raises(AssertionError, match="CUDA finds no NVIDIA GPU on this machine"):
        play(stub, "", STUB_NO_DEVICE="1")


HIDDEN = """
from autosched.runtime.gpu import driver_api
from autosched.runtime.gpu.devices import lacking
print(lacking("cuda"))
driver_api.FUNCTIONS.pop(driver_api.EARLY_LAUNCH)
print(lacking("cuda"))
"""


def test_what_a_driver_lacks_is_said(stub: Stub) -> None:
    _, said = play(stub, HIDDEN)
    assert said.splitlines() == ["()", "('early launches (cuLaunchKernelEx, of CUDA 11.8)',)"]


def test_a_driver_without_early_launches_launches_in_turn(libcuda: Path) -> None:
    log, _ = play(
        Stub(libcuda, "pycuda"),
        r"""
from dataclasses import replace
from autosched.runtime.gpu import driver_api
from autosched.runtime.gpu.pycuda import PyCudaDevice
driver_api.FUNCTIONS.pop(driver_api.EARLY_LAUNCH)
d, source = PyCudaDevice(), k.source
first = source.launches[0]
made = replace(source, launches=(first, replace(first, arguments=("C", "B", "A"), is_early=True)))
memory = {name: d.allocate(1 << 16) for name in "ABC"}
d.run(d.prepare(d.load(DeviceCode(b"\x7fELF"), made), made, memory))
""",
    )
    assert [line for line in log if line.startswith(("early", "launch"))] == [f"launch 2 1 1  32 1 1  0  {OWN}"] * 2


EXTERN, STATIC = "extern __shared__ unsigned char s[];", "__shared__ float s[8];"


@pytest.mark.parametrize(("own", "other"), [(EXTERN, STATIC), (STATIC, EXTERN)])
def test_shared_memory_is_asked_for_where_it_is_extern(own: str, other: str) -> None:
    """Of the kernel itself, and not of another one in the text."""
    heads = ("__launch_bounds__(32, 1) add", "__cluster_dims__(2, 1, 1) __launch_bounds__(32) adds")
    text = "\n".join(
        f'extern "C" __global__ void {head}(float* A)\n{{\n  {line}\n}}'
        for head, line in zip(heads, (own, other), strict=True)
    )
    launch = Launch("add", (2, 1, 1), (32, 1, 1), ("A",), 32)
    source = GpuSource("add", "cuda", text, (launch,), ("A",), (), ())
    assert dynamic_shared_bytes(source, launch) == (32 if own == EXTERN else 0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(DeviceError, match="CUDA needs a package"):
        PyCudaDevice()
