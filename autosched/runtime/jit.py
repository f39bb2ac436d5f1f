"""JIT compiler: from LLVM IR text to machine code; the only module that uses llvmlite.

`compile_object` needs no device and may run in any process; `load_object` links an object into this process. LLVM of
the wheels is built with assertions: IR that breaks them aborts the process, so candidates are compiled in workers.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from autosched.errors import TargetError
from autosched.runtime.disk_cache import read_code, write_code
from autosched.runtime.pool import MAX_THREADS, bound_parallel_ir, exported_pool_ir, pool_ir
from autosched.runtime.spills import stack_accesses
from autosched.runtime.versions import code_key
from autosched.target import Target, host_arch, may_use_tiles, parse_target

# The IR is in its final form already (vectorised, unrolled, register tiles as values); only stack slots are to be
# promoted to values. Names of llvmlite's ModulePassManager.add_<name>_pass, in order.
PASSES: tuple[str, ...] = ("sroa",)
Options = tuple[tuple[str, bool], ...]  # LLVM's options that differ from their defaults, by name
CODEGEN_LEVEL = 3
# Loop strength reduction takes about a quarter of LLVM's time. Addresses are hoisted already, with constants in the
# instructions, so it gains little: without it the loops of AVX-512 kernels have about two more integer instructions
# and no more spills, and 139 of them took 1.001 times as long (geometric mean). On targets with 16 registers 75 kernels
# took 1.011 times as long, a dilated convolution 1.1 times, so it stays enabled there.
#
# The preparation of code generation, which moves addresses and conditions to where they are used, takes a twelfth of
# LLVM's time; without it 150 AVX-512 kernels took 0.9998 times as long.
LEFT_OUT: Options = (("-disable-lsr", True), ("-disable-cgp", True))
# LLVM's scheduler of machine instructions moves loads up before registers are allocated. Sometimes that takes too many
# registers, so that loops spill vectors. Kernels with spills are compiled once more in source order, and the code with
# fewer spills is taken: that of 4 of the 21 kernels of a 3-D ResNet-18, whose first layer is 1.6 times as fast.
IN_ORDER: Options = (("-enable-misched", False),)
LOADS_PER_ENGINE = 64  # LLJIT keeps about 9 KB per library for its own lifetime, so it is replaced now and then

_library_numbers = itertools.count()
_LOCK = threading.RLock()  # the engine, the pool and the bound regions are created once


class LoadedKernel:
    """A kernel in this process. `address` is valid as long as the object lives, which releases the code at its end."""

    __slots__ = ("_tracker", "address", "entry", "function", "threads")

    def __init__(self, tracker: Any, entry: str, threads: int) -> None:
        self._tracker = tracker
        self.entry = entry
        self.threads = threads
        self.address: int = tracker[entry]
        self.function = _PROTOTYPE(self.address)

    def __call__(self, args: int, workspace: int) -> int:
        """Run the kernel and return its status. `args`: address of the array of pointers; `workspace`: that of the
        scratch.
        """
        return int(self.function(args, workspace, self.threads))


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def compile_object(ir: str, target: Target, level: int = CODEGEN_LEVEL) -> bytes:
    """Compile a module of IR text to a relocatable object file; `level`: LLVM's optimisation level, 0 to 3. Raises
    RuntimeError with LLVM's message for malformed IR.
    """
    return _compiled(ir, target, level)[0]


def compile_once(ir: str, target: Target) -> bytes:
    """Return the object file of a module of LLVM IR, from the disk cache if it is there. Raises RuntimeError for
    malformed IR; a cache that cannot be used is no error."""
    key = code_key(ir, target)
    if (code := read_code(key)) is None:
        write_code(key, code := compile_object(ir, target))
    return code


def compile_interruptibly(ir: str, target: Target) -> bytes:
    """Compile as `compile_object` does, but let Ctrl-C end the wait at once: LLVM may block its thread for minutes.

    It runs in a daemon thread, whose result is dropped after an interrupt. Only the main thread can be interrupted;
    other threads compile themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        return compile_object(ir, target)
    answer: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(compile_object(ir, target))
        except BaseException as error:
            answer.put(error)

    threading.Thread(target=work, name="autosched-compile", daemon=True).start()
    try:
        outcome = answer.get()
    except BaseException:
        _leave_without_destructors()
        raise
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@cache
def _leave_without_destructors() -> None:
    """Make the process end without C++ destructors: LLVM's would destroy objects that a thread still compiling uses.
    Python's own shutdown is complete by then.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's: it calls a function with the exit status, here the one that ends at once
        libc.on_exit(libc._exit, None)


def emit_assembly(ir: str, target: Target) -> str:
    """Return the assembly text of the code that `compile_object` gives."""
    machine = _machine(target)
    module = _optimised(ir, target, machine)
    with _options(_compiled(ir, target)[1]):
        return str(machine.emit_assembly(module))


def export_object(ir: str, target: Target, threads: int, alone: bool = True) -> bytes:
    """Return an object file with the module and the thread pool; it needs libc (with pthread) and libm only.

    Functions keep their C prototypes; regions run on at most `threads` threads. Unless it is `alone`, the kernels'
    objects that are linked with it use its `autosched_parallel`.
    """
    llvm = _llvm()
    machine = _machine(target)
    module = _optimised(ir, target, machine)
    pool = _parse(exported_pool_ir(target, threads), target)
    module.link_in(pool)
    if alone:
        module.get_function("autosched_parallel").linkage = llvm.Linkage.internal
    with _options(_compiled(ir, target)[1]):
        return bytes(machine.emit_object(module))


def load_object(obj: bytes, entry: str, threads: int) -> LoadedKernel:
    """Load a single object with one entry, as `load_objects` does."""
    return load_objects([obj], (entry,), threads)[entry]


def load_objects(objects: Sequence[bytes], entries: tuple[str, ...], threads: int) -> dict[str, LoadedKernel]:
    """Link objects, which may call each other, into this process; their parallel regions run on at most `threads`
    threads of the process's pool.

    Raises TargetError when `threads` is out of range and RuntimeError when a symbol is not defined
    anywhere (LLVM says on stderr which).
    """
    if not 1 <= threads <= MAX_THREADS:
        raise TargetError(f"a kernel runs on 1 to {MAX_THREADS} threads, but {threads} were asked for")
    may_use_tiles()  # of this process, which may be another than the one that compiled the objects
    builder = _llvm().JITLibraryBuilder()
    for obj in objects:
        builder.add_object_img(obj)
    with _LOCK:
        builder.import_symbol("autosched_parallel", _bound_parallel(threads))
        tracker = _link(builder, entries, "kernel")
    return {entry: LoadedKernel(tracker, entry, threads) for entry in entries}


def load_library(ir: str, target: Target, names: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    """Compile and link helper code that may use the pool's symbols; return (owner to keep alive, address of each
    name).
    """
    builder = _llvm().JITLibraryBuilder().add_object_img(compile_once(ir, target))
    with _LOCK:
        for symbol, address in _pool().items():
            builder.import_symbol(symbol, address)
        tracker = _link(builder, names, "library")
    return tracker, {name: int(tracker[name]) for name in names}


def _link(builder: Any, exports: tuple[str, ...], prefix: str) -> Any:
    builder.add_current_process()
    for name in exports:
        builder.export_symbol(name)
    number = next(_library_numbers)
    engine = _engine(number // LOADS_PER_ENGINE)
    tracker = builder.link(engine, f"{prefix}{number}")
    tracker.engine = engine  # disposed after the last of its kernels
    return tracker


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@lru_cache(maxsize=16)
def _machine(target: Target, level: int = CODEGEN_LEVEL) -> Any:
    """Return LLVM's target machine: position-independent code, as JITLink and shared objects need."""
    llvm = _llvm()
    if target.backend.is_gpu:
        raise TargetError(f"LLVM compiles for processors, but the target is {target.kind}")
    if target.arch != host_arch():
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.mcpu, features=target.features, opt=level, reloc="pic", codemodel="default"
    )


def _parse(ir: str, target: Target) -> Any:
    llvm = _llvm()
    module = llvm.parse_assembly(ir)
    module.verify()
    module.triple = target.triple
    module.data_layout = str(_machine(target).target_data)
    return module


def _optimised(ir: str, target: Target, machine: Any) -> Any:
    llvm = _llvm()
    module = _parse(ir, target)
    if PASSES:
        manager = llvm.create_new_module_pass_manager()
        for name in PASSES:
            getattr(manager, f"add_{name}_pass")()
        options = llvm.create_pipeline_tuning_options(speed_level=CODEGEN_LEVEL)
        manager.run(module, llvm.create_pass_builder(machine, options))
    return module


def _compiled(ir: str, target: Target, level: int = CODEGEN_LEVEL) -> tuple[bytes, Options]:
    """Return an object and its options: the one of two instruction schedules with fewer spilled vectors."""
    from autosched.codegen.llvm.math.rare_cases import are_called

    usual = () if target.reduces_strength else LEFT_OUT
    code = _object(ir, target, level, usual)
    if are_called(ir) or (spilled := stack_accesses(code, target)) == 0:  # what waits for a call is there in any order
        return code, usual
    other = _object(ir, target, level, in_order := (*usual, *IN_ORDER))
    return (other, in_order) if stack_accesses(other, target) < spilled else (code, usual)


def _object(ir: str, target: Target, level: int, options: Options) -> bytes:
    machine = _machine(target, level)
    module = _optimised(ir, target, machine)
    with _options(options):
        return bytes(machine.emit_object(module))


@contextmanager
def _options(options: Options) -> Iterator[None]:
    """Set LLVM's options while its code generator runs: they are global, and other code of the process may use LLVM."""
    llvm = _llvm()
    with _LOCK:
        for name, value in options:
            llvm.set_option("autosched", f"{name}={str(value).lower()}")
        try:
            yield
        finally:
            for name, value in options:
                llvm.set_option("autosched", f"{name}={str(not value).lower()}")


@lru_cache(maxsize=1)
def _engine(generation: int) -> Any:
    """Return a linker. JITLink turns an unknown symbol into a Python exception and frees the memory of dropped code."""
    llvm = _llvm()
    if sys.platform.startswith("linux"):  # an interpreter may be linked without the C mathematics library
        llvm.load_library_permanently("libm.so.6")
    return llvm.create_lljit_compiler(_machine(parse_target("cpu")), use_jit_link=True)


_POOL_SYMBOLS = ("autosched_run", "autosched_pool_shutdown")
_kept: list[Any] = []  # the pool's code must outlive its threads


@lru_cache(maxsize=1)
def _pool() -> dict[str, int]:
    target = parse_target("cpu")
    builder = _llvm().JITLibraryBuilder().add_object_img(compile_once(pool_ir(target), target))
    tracker = _link(builder, _POOL_SYMBOLS, "pool")
    _kept.append(tracker)
    addresses = {name: int(tracker[name]) for name in _POOL_SYMBOLS}
    atexit.register(ctypes.CFUNCTYPE(None)(addresses["autosched_pool_shutdown"]))
    return addresses


@cache
def _bound_parallel(threads: int) -> int:
    """Return the address of `autosched_parallel` with its number of threads bound, so that kernels do not share it."""
    name, ir = _bound_parallel_ir(threads)
    owner, addresses = load_library(ir, parse_target("cpu"), (name,))
    _kept.append(owner)
    return addresses[name]


def _bound_parallel_ir(threads: int) -> tuple[str, str]:
    """Return the name and the module of the function of `_bound_parallel`."""
    name = f"autosched_parallel_{threads}"
    return name, "declare void @autosched_run(ptr, ptr, i64, i64)\n" + bound_parallel_ir(name, threads)


def thread_modules(threads: int) -> tuple[str, str]:
    """Return the modules of IR, for the target "cpu", that kernels of so many threads are linked with here."""
    return pool_ir(parse_target("cpu")), _bound_parallel_ir(threads)[1]
