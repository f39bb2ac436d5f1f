"""Export of a kernel of varying sizes: a shared library and its header, whose functions take the sizes as arguments.

    int autosched_NAME(const T *in0, ..., T *out0, ..., int64_t M, ..., void *workspace);
    int64_t autosched_NAME_workspace_bytes(int64_t M, ...);

The library has the variants that the kernel has when it is exported. The function returns 0, or
AUTOSCHED_NAME_NO_CODE, without having written anything, for sizes out of range and those that no variant is right for.
The second one says how much scratch memory a call takes, -1 for such sizes. Arrays and memory are as those of other
exported kernels (`artifacts.kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autosched.artifacts.c_interface import Header, arguments_of, c_identifier, c_names, terms
from autosched.artifacts.linking import EXPORTED, link_library, write_whole
from autosched.errors import UsageError
from autosched.ir.expr import Binary, Const, Expr, Var
from autosched.ir.size import unit_of
from autosched.kernel.sizes.description import form_text
from autosched.kernel.sizes.sized_kernel import SizedKernel
from autosched.kernel.sizes.variants import KernelVariant
from autosched.runtime.jit import export_object
from autosched.runtime.spec import ArraySpec

NO_CODE = 1
_PLAIN = ("add", "sub", "mul")  # named alike in LLVM
_COMPARED = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_CHOSEN = {"min": "smin", "max": "smax"}
_ROUNDED = ("floordiv", "mod", "ceildiv")


def export_sized_kernel(kernel: SizedKernel, out: Path | None = None) -> list[Path]:
    """Write the library at `out`, by default autosched_NAME.so, and the header beside it; return both.

    Each file is written atomically, the library last. Raises UsageError for a kernel of a GPU or without variants, for
    a path that cannot be written or does not end in .so, and without a linker.
    """
    name = c_identifier(
        kernel.workload.definition.name.rpartition(":")[2] if out is None else out.stem.removeprefix("lib")
    )
    symbol = name if name.startswith("autosched_") else f"autosched_{name}"
    path = Path(f"{symbol}.so") if out is None else out
    if path.suffix != ".so":
        raise UsageError(f"a kernel of varying sizes is exported as a shared library, so {path.name} has to end in .so")
    if kernel.device.target.backend.is_gpu:
        raise UsageError(
            f"kernels of varying sizes are exported for processors, and this one is for {kernel.target_text}"
        )
    if not kernel.variants:
        example = ", ".join(f"{name}={allowed[-1]}" for name, allowed in kernel.ranges.items())
        raise UsageError(
            f"the kernel has no code to export yet: call it, or kernel.of({example}), for each kind of sizes"
        )
    interface = _Interface(kernel, symbol)
    text = "".join(f"declare i32 @{variant.kernel.name}(ptr, ptr, i64)\n" for variant in kernel.variants)
    text += interface.text(f"i32 @{symbol}", interface.arrays, interface.call, f"i32 {NO_CODE}")
    text += interface.text(f"i64 @{symbol}_workspace_bytes", (), interface.workspace_bytes, "i64 -1")
    target, threads = kernel.device.target, kernel.threads
    objects = [variant.kernel.code for variant in kernel.variants]
    library = link_library([export_object(text, target, threads, alone=False), *objects], path, EXPORTED)
    write_whole(path.with_suffix(".h"), interface.header.text.encode())
    write_whole(path, library)
    return [path, path.with_suffix(".h")]


class _Interface:
    """The exported functions of a kernel, as LLVM IR and as a header."""

    def __init__(self, kernel: SizedKernel, symbol: str) -> None:
        self.kernel, self.symbol = kernel, symbol
        inputs, outputs = (
            [ArraySpec(t.name, (), t.dtype) for t in each] for each in (kernel.dag.inputs, kernel.dag.outputs)
        )
        self.arguments = arguments_of(inputs, outputs)
        names = c_names([*(a.name for a in self.arguments), *kernel.ranges])
        self.sizes = names[len(self.arguments) :]
        self.arrays = tuple(f"ptr %a{n}" for n in range(len(self.arguments)))

    def text(
        self, head: str, arrays: Sequence[str], result: Callable[[KernelVariant, _Forms], list[str]], otherwise: str
    ) -> str:
        """Return a function of arrays, sizes and, with arrays, the workspace.

        `result`: the lines that return what a variant gives; `otherwise`: the value where none is right.
        """
        memory = ("ptr %workspace",) if arrays else ()
        parameters = (*arrays, *(f"i64 %n{n}" for n in range(len(self.sizes))), *memory)
        forms = _Forms({})
        inside = "true"
        for n, allowed in enumerate(self.kernel.ranges.values()):
            unit, size = unit_of(allowed), f"%n{n}"
            tests = [f"icmp sge i64 {size}, {allowed[0]}", f"icmp sle i64 {size}, {allowed[-1]}"]
            offset = forms.value(f"sub i64 {size}, {allowed.start}")
            tests.append(f"icmp eq i64 {forms.value(f'srem i64 {offset}, {allowed.step}')}, 0")
            for test in tests:
                inside = forms.value(f"and i1 {inside}, {forms.value(test)}")
            forms.variables[f"s{n}"] = forms.value(f"sdiv i64 {size}, {unit}")
        lines = [*forms.lines, f"  br i1 {inside}, label %try0, label %none"]
        for n, variant in enumerate(self.kernel.variants):
            guards, numbers = _Forms(forms.variables, f"g{n}."), _Forms(forms.variables, f"r{n}.")
            following = f"%try{n + 1}" if n + 1 < len(self.kernel.variants) else "%none"
            holds = guards.all_of(variant.sizes.guards)
            lines += [f"try{n}:", *guards.lines, f"  br i1 {holds}, label %run{n}, label {following}"]
            lines += [f"run{n}:", *result(variant, numbers)]
        return "\n".join(
            [f"\ndefine {head}({', '.join(parameters)}) nounwind {{", *lines, "none:", f"  ret {otherwise}", "}", ""]
        )

    def call(self, variant: KernelVariant, forms: _Forms) -> list[str]:
        """Return the lines that call a variant with its table."""
        table = [forms.of(form) for form in variant.sizes.table] or ["0"]
        pointers = [
            *(f"%a{n}" for n in range(len(self.arguments))),
            forms.value(f"alloca [{len(table)} x i64], align 16"),
        ]
        args = forms.value(f"alloca [{len(pointers)} x ptr], align 16")
        for kind, base, values in (("i64", pointers[-1], table), ("ptr", args, pointers)):
            for n, value in enumerate(values):
                at = forms.value(f"getelementptr inbounds {kind}, ptr {base}, i64 {n}")
                forms.lines.append(f"  store {kind} {value}, ptr {at}")
        entry = f"@{variant.kernel.name}(ptr {args}, ptr %workspace, i64 {self.kernel.threads})"
        return [*forms.lines, f"  {forms.name()} = call i32 {entry}", f"  ret i32 {forms.last}"]

    def workspace_bytes(self, variant: KernelVariant, forms: _Forms) -> list[str]:
        nbytes = forms.of(variant.sizes.workspace_bytes)
        return [*forms.lines, f"  ret i64 {nbytes}"]

    @property
    def header(self) -> Header:
        kernel, target = self.kernel, self.kernel.device.target
        every = [variant.sizes.shapes for variant in kernel.variants]  # a size is a number where a variant has one only
        shapes = max(every, key=lambda shapes: sum(not isinstance(n, Const) for shape in shapes for n in shape))
        about = [
            f"  {a.name:<12} {a.role}  {a.spec.dtype}[{', '.join(map(self._form_text, shape))}]"
            for a, shape in zip(self.arguments, shapes, strict=True)
        ]
        for name, allowed in zip(self.sizes, kernel.ranges.values(), strict=True):
            step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
            about.append(f"  {name:<12} size {allowed.start} to {allowed[-1]}{step}")
        about.append(
            f"  {'workspace':<12} scratch, 64-byte aligned, {self.symbol}_workspace_bytes(...) bytes, one a call"
        )
        about += ["", *terms(target, kernel.threads)]
        about.append(
            f"Returns {self.symbol.upper()}_NO_CODE, and writes nothing, for sizes without code. There is code for"
        )
        about += [f"  {' and '.join(map(self._form_text, v.sizes.guards)) or 'all sizes'}" for v in kernel.variants]
        declared = ", ".join(f"int64_t {name}" for name in self.sizes)
        arrays = ", ".join(f"{a.kind}{a.name}" for a in self.arguments)
        prototypes = [
            f"int {self.symbol}({arrays}, {declared}, void *workspace);",
            f"int64_t {self.symbol}_workspace_bytes({declared});",
        ]
        macros: list[tuple[str, object]] = [
            ("TARGET", f'"{target.arch}-{target.mcpu}"'), ("THREADS", kernel.threads), ("NO_CODE", NO_CODE),
        ]  # fmt: skip
        return Header(
            self.symbol,
            f"{kernel.workload.definition.name}, for sizes of a call",
            about,
            ("stdint.h",),
            macros,
            prototypes,
        )

    def _form_text(self, form: Expr) -> str:
        return form_text(form, dict(zip(self.sizes, self.kernel.ranges.values(), strict=True)))


class _Forms:
    """Instructions that compute closed forms of sizes: integers of 64 bits, guards of one.

    `variables`: the values of symbols by name. `lines`: the instructions so far, whose values have names with `prefix`.
    """

    def __init__(self, variables: dict[str, str], prefix: str = "v") -> None:
        self.variables, self.lines, self.last = variables, list[str](), ""
        self._prefix, self._known = prefix, dict[Expr, str]()
        self._divisors: list[str] = []

    def name(self) -> str:
        """Return a new name of a value."""
        self.last = f"%{self._prefix}{len(self.lines)}"
        return self.last

    def value(self, instruction: str) -> str:
        """Emit an instruction, and return the name of its value."""
        name = self.name()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def all_of(self, guards: Sequence[Expr]) -> str:
        """Return whether all guards hold; a guard with a division by 0 does not."""
        holds = "true"
        values = [self.of(guard) for guard in guards]
        for value in (*values, *self._divisors):
            holds = self.value(f"and i1 {holds}, {value}")
        return holds

    def of(self, form: Expr) -> str:
        """Return the value of a closed form."""
        if form not in self._known:
            self._known[form] = self._computed(form)
        return self._known[form]

    def _computed(self, form: Expr) -> str:
        match form:
            case Const(value=bool() as value):
                return str(value).lower()
            case Const():
                return str(form.number)
            case Var(name=name):
                return self.variables[name]
            case Binary(op=op, a=a, b=b):
                return self._binary(op, self.of(a), self.of(b))
        raise AssertionError(f"{form} is no form of sizes")

    def _binary(self, op: str, a: str, b: str) -> str:
        if op in _PLAIN:
            return self.value(f"{op} i64 {a}, {b}")
        if op in _COMPARED:
            return self.value(f"icmp {_COMPARED[op]} i64 {a}, {b}")
        if op in _CHOSEN:
            return self.value(f"call i64 @llvm.{_CHOSEN[op]}.i64(i64 {a}, i64 {b})")
        if op == "ceildiv":
            return self.value(f"sub i64 0, {self._binary('floordiv', self.value(f'sub i64 0, {a}'), b)}")
        if op in _ROUNDED:
            return self._rounded(op, a, b)
        assert op in ("and", "or"), f"{op} is no operation of forms"
        return self.value(f"{op} i1 {a}, {b}")

    def _rounded(self, op: str, a: str, b: str) -> str:
        """Divide, rounding down; the rest has the sign of the divisor. Where that is 0, all guards fail."""
        self._divisors.append(self.value(f"icmp ne i64 {b}, 0"))
        divisor = self.value(f"select i1 {self._divisors[-1]}, i64 {b}, i64 1")
        rest = self.value(f"srem i64 {a}, {divisor}")
        differs = self.value(f"icmp slt i64 {self.value(f'xor i64 {rest}, {divisor}')}, 0")
        is_below = self.value(f"and i1 {self.value(f'icmp ne i64 {rest}, 0')}, {differs}")
        if op == "mod":
            return self.value(f"select i1 {is_below}, i64 {self.value(f'add i64 {rest}, {divisor}')}, i64 {rest}")
        quotient = self.value(f"sdiv i64 {a}, {divisor}")
        return self.value(f"sub i64 {quotient}, {self.value(f'zext i1 {is_below} to i64')}")
