"""The entry function of a network: calls its kernels one after the other on one arena, without Python.

    i32 @NAME(ptr args, ptr arena, i64 nthreads)      args: inputs, outputs, the block of weights

It has the prototype of a kernel (`codegen.source.KernelSource`), so whatever calls kernels calls networks. Numbers of
the calls may be sizes (`ir.size`): the last of `args` is then the table from which the entry loads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import Template

from autosched.codegen.calls import (
    ADDRESS,
    ARGUMENT,
    OUT_OF_RANGE,
    ArgumentCopy,
    BoundsCheck,
    KernelCall,
    LoopArgument,
    Pointer,
    RowWrite,
)
from autosched.codegen.llvm.bounds_check import bounds_check_ir
from autosched.codegen.llvm.vocabulary import LOADS, load_sizes, reads_sizes, table_lines
from autosched.codegen.source import function_attributes
from autosched.ir.expr import Expr
from autosched.target import Target

_WRITE_ROWS = """
define internal void @write_rows.i$bits(
  ptr %to, ptr %at, ptr %rows, i64 %outer, i64 %size, i64 %n, i64 %sharing, i64 %bytes
) #0 {
entry:
  %total = mul i64 %outer, %n
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %done ]
  %more = icmp ult i64 %i, %total
  br i1 %more, label %row, label %end
row:
  %o = udiv i64 %i, %n
  %k = urem i64 %i, %n
  %set = udiv i64 %o, %sharing
  %sets.before = mul i64 %set, %n
  %number.at = add i64 %sets.before, %k
  %place.at = getelementptr i$bits, ptr %at, i64 %number.at
  %read = load i$bits, ptr %place.at
  %given = $given
  %from.end = add i64 %given, %size
  %is.negative = icmp slt i64 %given, 0
  %place = select i1 %is.negative, i64 %from.end, i64 %given
  %exists = icmp ult i64 %place, %size
  br i1 %exists, label %copy, label %done
copy:
  %before = mul i64 %o, %size
  %number = add i64 %before, %place
  %to.at = mul i64 %number, %bytes
  %to.row = getelementptr i8, ptr %to, i64 %to.at
  %from.at = mul i64 %i, %bytes
  %from.row = getelementptr i8, ptr %rows, i64 %from.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to.row, ptr %from.row, i64 %bytes, i1 false)
  br label %done
done:
  %i1 = add i64 %i, 1
  br label %next
end:
  ret void
}
"""


def emit_program(
    name: str,
    calls: Sequence[KernelCall | RowWrite | BoundsCheck],
    n_arguments: int,
    target: Target,
    copies: Sequence[ArgumentCopy] = (),
) -> tuple[str, tuple[Expr, ...]]:
    """LLVM IR of the entry `name`, whose kernels are declared: the linker finds them. `copies` come first. And the
    closed forms of its table of sizes.

    A kernel that returns another code than 0 ends the network with it, a failed bounds check with OUT_OF_RANGE.
    """
    launches = [call for call in calls if isinstance(call, KernelCall)]
    most = max((len(launch.pointers) for launch in launches), default=1)
    symbols = dict.fromkeys(launch.entry for launch in launches if launch.address is None)
    lines = [f"declare i32 @{_quoted(entry)}(ptr, ptr, i64)" for entry in symbols]
    lines += [_write_rows(8 * n) for n in sorted({call.index_bytes for call in calls if isinstance(call, RowWrite)})]
    lines += [bounds_check_ir(t) for t in sorted({call.dtype for call in calls if isinstance(call, BoundsCheck)})]
    lines += [
        f"attributes #0 = {{ {function_attributes(target)} }}",
        f"define i32 @{_quoted(name)}(ptr %args, ptr %arena, i64 %nthreads) #0 {{",
        "entry:",
        f"  %pointers = alloca [{most} x ptr], align 8",
        f"  %weights.at = getelementptr inbounds ptr, ptr %args, i64 {n_arguments}",
        "  %weights = load ptr, ptr %weights.at, align 8",
    ]
    n_before = len(lines)
    for n, copy in enumerate(copies):
        lines += _copy(n, copy)
    lines += ["  br label %start", "start:"]
    blocks, block = dict[int, str](), "start"  # that the calls of kernels are in; the one that is written
    for number, call in enumerate(calls):
        if isinstance(call, KernelCall):
            blocks[number], block = block, f"after{number}"
            lines += _call(number, call)
        elif isinstance(call, BoundsCheck):
            block = f"after{number}"
            lines += _bounds_check(number, call)
        else:
            lines += _written(number, call)
    lines += ["  ret i32 0", "out.of.range:", f"  ret i32 {OUT_OF_RANGE}", "failed:", *_failed(blocks), "}"]
    if reads_sizes("\n".join(lines)):
        lines[n_before:n_before] = [*table_lines(n_arguments + 1), LOADS]
    (text,), sizes = load_sizes(["\n".join(lines) + "\n"])
    return text, sizes


def emit_loop(name: str, body: str, arguments: Sequence[LoopArgument], steps: int) -> str:
    """LLVM IR of the function `name`, which calls the function `body` of the same module with these arguments so many
    times, and ends with the first code that is not 0. Both have the prototype of a kernel."""
    lines = [
        f"define i32 @{_quoted(name)}(ptr %args, ptr %arena, i64 %nthreads) #0 {{",
        "entry:",
        f"  %pointers = alloca [{len(arguments)} x ptr], align 8",
    ]
    inside: list[str] = []
    for n, argument in enumerate(arguments):
        for word, pointer in (("even", argument.pointer), ("odd", argument.odd), ("first", argument.first)):
            lines += [] if pointer is None else _pointer(f"%{word}{n}", pointer)
        lines.append(f"  %slot{n} = getelementptr inbounds ptr, ptr %pointers, i64 {n}")
        inside += _loop_argument(n, argument)
    lines += [
        "  br label %next",
        "next:",
        "  %i = phi i64 [ 0, %entry ], [ %i1, %done ]",
        "  %before = sub i64 %i, 1",
        "  %is.first = icmp eq i64 %i, 0",
        *inside,
        f"  %code = call i32 @{_quoted(body)}(ptr %pointers, ptr %arena, i64 %nthreads)",
        "  %is.failure = icmp ne i32 %code, 0",
        "  br i1 %is.failure, label %end, label %done",
        "done:",
        "  %i1 = add i64 %i, 1",
        f"  %is.next = icmp ult i64 %i1, {steps}",
        "  br i1 %is.next, label %next, label %end",
        "end:",
        "  ret i32 %code",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _loop_argument(number: int, argument: LoopArgument) -> Iterator[str]:
    """Yield the lines that store the pointer to an argument of the body in iteration %i."""
    step, at = "%i" if argument.first is None else "%before", f"%even{number}"
    if argument.odd is not None:
        yield f"  %is.odd{number} = trunc i64 {step} to i1"
        yield f"  %side{number} = select i1 %is.odd{number}, ptr %odd{number}, ptr {at}"
        at = f"%side{number}"
    if argument.stride:
        yield f"  %offset{number} = mul i64 {step}, {argument.stride}"
        yield f"  %row{number} = getelementptr i8, ptr {at}, i64 %offset{number}"
        at = f"%row{number}"
    if argument.first is not None:
        yield f"  %state{number} = select i1 %is.first, ptr %first{number}, ptr {at}"
        at = f"%state{number}"
    yield f"  store ptr {at}, ptr %slot{number}, align 8"


def _write_rows(bits: int) -> str:
    wider = "add i64 %read, 0" if bits == 64 else f"sext i{bits} %read to i64"
    return Template(_WRITE_ROWS).substitute(bits=bits, given=wider)


def _written(number: int, write: RowWrite) -> Iterator[str]:
    places = {"to": write.to, "at": write.at, "rows": write.rows}
    for word, pointer in places.items():
        yield from _pointer(f"%{word}{number}", pointer)
    pointers = ", ".join(f"ptr %{word}{number}" for word in places)
    numbers = ", ".join(f"i64 {n}" for n in (*write.shape, write.sharing, write.nbytes))
    yield f"  call void @write_rows.i{8 * write.index_bytes}({pointers}, {numbers})"


def _bounds_check(number: int, check: BoundsCheck) -> Iterator[str]:
    yield from _pointer(f"%ids{number}", check.ids)
    numbers = ", ".join(
        f"i64 {n}" for n in (check.count, check.stride, check.low, check.high - check.low, check.number)
    )
    arguments = f"ptr %ids{number}, {numbers}, ptr %arena"
    yield f"  %is.outside{number} = call i1 @has_index_outside.{check.dtype}({arguments})"
    yield f"  br i1 %is.outside{number}, label %out.of.range, label %after{number}"
    yield f"after{number}:"


def _copy(number: int, copy: ArgumentCopy) -> Iterator[str]:
    yield from _pointer(f"%from{number}", Pointer(ARGUMENT, copy.source))
    yield from _pointer(f"%copy{number}", Pointer(ARGUMENT, copy.to))
    yield f"  %same{number} = icmp eq ptr %from{number}, %copy{number}"
    yield f"  br i1 %same{number}, label %copied{number}, label %copying{number}"
    yield f"copying{number}:"
    arguments = f"ptr %copy{number}, ptr %from{number}, i64 {copy.nbytes}, i1 false"
    yield f"  call void @llvm.memcpy.p0.p0.i64({arguments})"
    yield f"  br label %copied{number}"
    yield f"copied{number}:"


def _call(number: int, launch: KernelCall) -> Iterator[str]:
    for n, pointer in enumerate(launch.pointers):
        if pointer is not None:
            yield from _pointer(f"%p{number}.{n}", pointer)
            yield f"  %s{number}.{n} = getelementptr inbounds ptr, ptr %pointers, i64 {n}"
            yield f"  store ptr %p{number}.{n}, ptr %s{number}.{n}, align 8"
    yield from _pointer(f"%w{number}", launch.workspace)
    callee = f"@{_quoted(launch.entry)}"
    if launch.address is not None:
        callee = f"%e{number}"
        yield f"  {callee} = inttoptr i64 {launch.address} to ptr"
    yield f"  %r{number} = call i32 {callee}(ptr %pointers, ptr %w{number}, i64 %nthreads)"
    yield f"  %f{number} = icmp ne i32 %r{number}, 0"
    yield f"  br i1 %f{number}, label %failed, label %after{number}"
    yield f"after{number}:"


def _pointer(name: str, pointer: Pointer) -> Iterator[str]:
    if pointer.place == ARGUMENT:
        yield f"  {name}.at = getelementptr inbounds ptr, ptr %args, i64 {pointer.at}"
        yield f"  {name}.whole = load ptr, ptr {name}.at, align 8"
        yield f"  {name} = getelementptr inbounds i8, ptr {name}.whole, i64 {pointer.offset}"
    elif pointer.place == ADDRESS:
        yield f"  {name} = inttoptr i64 {pointer.at} to ptr"
    else:
        yield f"  {name} = getelementptr inbounds i8, ptr %{pointer.place}, i64 {pointer.at}"


def _failed(blocks: Mapping[int, str]) -> list[str]:
    """The code of the kernel that failed. `blocks`: where the calls are."""
    if not blocks:
        return ["  ret i32 1"]
    codes = ", ".join(f"[ %r{n}, %{label} ]" for n, label in blocks.items())
    return [f"  %code = phi i32 {codes}", "  ret i32 %code"]


def _quoted(name: str) -> str:
    return f'"{name}"'
