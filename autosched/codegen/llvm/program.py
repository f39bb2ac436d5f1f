"""The entry of a network: kernels called one after the other, each with pointers into one arena, without Python.

    i32 @NAME(ptr args, ptr arena, i64 nthreads)      args: inputs, outputs, the block of weights

It has the prototype of a kernel (`codegen.source.KernelSource`), so whatever calls kernels calls networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autosched.codegen.calls import ARGUMENT, KernelCall, Pointer
from autosched.codegen.source import function_attributes
from autosched.target import Target


def emit_program(name: str, launches: Sequence[KernelCall], n_arguments: int, target: Target) -> str:
    """LLVM IR of the entry `name`, whose kernels are declared: the linker finds them.

    A kernel that returns another code than 0 ends the network with it.
    """
    most = max((len(launch.pointers) for launch in launches), default=1)
    lines = [f"declare i32 @{_quoted(entry)}(ptr, ptr, i64)" for entry in dict.fromkeys(x.entry for x in launches)]
    lines += [
        f"attributes #0 = {{ {function_attributes(target)} }}",
        f"define i32 @{_quoted(name)}(ptr %args, ptr %arena, i64 %nthreads) #0 {{",
        "entry:",
        f"  %pointers = alloca [{most} x ptr], align 8",
        f"  %weights.at = getelementptr inbounds ptr, ptr %args, i64 {n_arguments}",
        "  %weights = load ptr, ptr %weights.at, align 8",
    ]
    for number, launch in enumerate(launches):
        lines += _call(number, launch)
    return "\n".join([*lines, "  ret i32 0", "failed:", *_failed(len(launches)), "}"]) + "\n"


def _call(number: int, launch: KernelCall) -> Iterator[str]:
    for n, pointer in enumerate(launch.pointers):
        if pointer is not None:
            yield from _pointer(f"%p{number}.{n}", pointer)
            yield f"  %s{number}.{n} = getelementptr inbounds ptr, ptr %pointers, i64 {n}"
            yield f"  store ptr %p{number}.{n}, ptr %s{number}.{n}, align 8"
    yield from _pointer(f"%w{number}", launch.workspace)
    yield f"  %r{number} = call i32 @{_quoted(launch.entry)}(ptr %pointers, ptr %w{number}, i64 %nthreads)"
    yield f"  %f{number} = icmp ne i32 %r{number}, 0"
    yield f"  br i1 %f{number}, label %failed, label %after{number}"
    yield f"after{number}:"


def _pointer(name: str, pointer: Pointer) -> Iterator[str]:
    if pointer.place == ARGUMENT:
        yield f"  {name}.at = getelementptr inbounds ptr, ptr %args, i64 {pointer.at}"
        yield f"  {name}.whole = load ptr, ptr {name}.at, align 8"
        yield f"  {name} = getelementptr inbounds i8, ptr {name}.whole, i64 {pointer.offset}"
    else:
        yield f"  {name} = getelementptr inbounds i8, ptr %{pointer.place}, i64 {pointer.at}"


def _failed(count: int) -> list[str]:
    """The code of the kernel that failed."""
    if not count:
        return ["  ret i32 1"]
    before = ["%entry", *(f"%after{n}" for n in range(count - 1))]
    codes = ", ".join(f"[ %r{n}, {label} ]" for n, label in enumerate(before))
    return [f"  %code = phi i32 {codes}", "  ret i32 %code"]


def _quoted(name: str) -> str:
    return f'"{name}"'
