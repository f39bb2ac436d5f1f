"""The house rules that a machine can check: import directions, sizes, forbidden calls, the top level."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("autosched", "search_spaces", "cost_model", "experiments")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
MAX_MODULES = 20  # of a folder of the product
# Modules and functions that may have more: what they take is a list by nature.
MANY_PARAMETERS = (
    "autosched.te.operators",  # an operator's numbers
    "autosched.graph.operators",  # an operator's tensors and attributes
    "autosched.api.tune",  # what a user says of a search
    "autosched.network_api.load",  # ... and of a network
    "autosched.inspection_api",  # ... and of both, a record or a network
    "autosched.executor.load_dynamic.load_dynamic",
    "autosched.network_tuning.estimate.plan",
    "experiments.gpu.triton_kernels",  # pointers and strides, which Triton hands over one by one
    # Of an instruction of vectors, and of a stage made of an operand; they take no record yet.
    "autosched.codegen.llvm.math.vector_math",
    "autosched.schedule.steps.tensorize",
)

# Lowest first; each may import itself and all before it. BOTTOM imports nothing else.
BOTTOM = ("autosched.errors", "autosched.backends", "autosched.target", "autosched.passes", "autosched.keywords")
CHAIN = (
    *BOTTOM,
    "autosched.ir",
    "autosched.te",
    "autosched.schedule",
    "autosched.lower",
    "autosched.codegen",
    "autosched.runtime",
    "autosched.measure",
    "autosched.store",
    "autosched.graph",
    "autosched.tuner",
    "search_spaces",
    "cost_model",
    "autosched.kernel",
    "autosched.planning",
    "autosched.artifacts",
    "autosched.executor",
    "autosched.verification",
    "autosched.network_tuning",
    "autosched.inspection",
    "autosched.torch_backend",
    "autosched.network_api",
    "autosched.inspection_api",
    "autosched.api",
    "autosched",
    "autosched.cli",
    "autosched.__main__",
    "experiments",
)
# What may import less than all before it.
RESTRICTED = {
    "search_spaces": CHAIN[: CHAIN.index("autosched.lower") + 1],
    "cost_model": (*BOTTOM, "autosched.ir", "autosched.lower"),
    "autosched.__main__": ("autosched.cli",),
}
ALLOWED = {unit: CHAIN[: n + 1] for n, unit in enumerate(CHAIN)} | RESTRICTED
# Arrows against the order that are meant, each inside a function.
EXCEPTIONS = {
    # Every node prints itself: `__str__` calls the printer.
    ("autosched.ir.expr", "autosched.ir.printer"),
    ("autosched.ir.stmt", "autosched.ir.printer"),
    # A model and a record have the verbs that take them as methods.
    ("autosched.executor.model", "autosched.inspection_api"),
    ("autosched.store.records", "autosched.inspection_api"),
}
TOP_LEVEL = {*CODE, "tests", "pyproject.toml", "README.md", "LICENSE"}
OF_AN_SDIST = {"PKG-INFO"}  # which a checkout has not
SMALL_FLOATS = ("float16", "bfloat16")
# What knows one small float from another: the table of dtypes, LLVM's words and conversions, dot products, matrices.
SMALL_FLOATS_HOMES = {
    "autosched/ir/dtype.py",
    "autosched/ir/instructions/dots.py",
    "autosched/ir/instructions/matrices.py",
    "autosched/lower/register_tiles/lane_pairs.py",
    "autosched/codegen/llvm/vocabulary.py",
    "autosched/codegen/llvm/small_floats.py",
    "autosched/codegen/llvm/dots.py",
    "autosched/te/operators/blocks.py",
    "autosched/graph/onnx/held_types.py",
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "imp"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    *(("os", name) for name in ("system", "popen")),
    *(("subprocess", name) for name in ("getoutput", "getstatusoutput")),
    *(("builtins", name) for name in FORBIDDEN_CALLS),
}
# Files without these words need no parser.
MAY_BE_FORBIDDEN = re.compile(
    rf"\b({'|'.join([*FORBIDDEN_MODULES, *FORBIDDEN_CALLS, *(name for _, name in FORBIDDEN_ATTRIBUTES)])}"
    r"|shell|allow_pickle)\b"
)
MAY_NAME_SMALL_FLOATS = re.compile(rf"{'|'.join(SMALL_FLOATS)}|\b(bits|nbytes|itemsize)\b")
HEAVY = ("llvmlite", "xgboost", "networkx", "matplotlib", "rich", "torch", "scipy", "tvm", "pycuda", "cuda", "onnx")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """Without the garbage collector, which looks through all nodes again and again: two thirds of the time."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


MODULES = {module_name(path): path for path in python_files(*CODE)}


# Imports


def is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def import_nodes(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports anywhere in a module, inside functions too, but for type checking only."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and is_type_checking(node.test):
        children = node.orelse
    for child in children:
        if not isinstance(child, ast.expr):
            yield from import_nodes(child)


def imported(module: str, tree: ast.Module, is_package: bool, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(module, line) for every import of one of the `known` modules."""
    for node in import_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                anchor = package[: len(package) - node.level + 1]
                base = ".".join([*anchor, base] if base else anchor)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in known else base for name in inner]
        yield from ((name, node.lineno) for name in dict.fromkeys(names) if name in known)


def unit_of(module: str) -> str | None:
    """The entry of ALLOWED that a module belongs to: the longest that is a prefix; `autosched` only for itself."""
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        unit = ".".join(parts[:n])
        if unit in ALLOWED and not (unit == "autosched" and n < len(parts)):
            return unit
    return None


@cache
def arrows() -> list[tuple[str, str, int]]:
    found = []
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        found += [(module, name, line) for name, line in imported(module, tree_of(path), is_package, MODULES)]
    return found


def is_allowed(module: str, target: str) -> bool:
    unit, other = unit_of(module), unit_of(target)
    if unit is None or other is None:
        return False
    if (module, target) in EXCEPTIONS or other == unit:
        return True
    within = unit != "autosched" and other.startswith(f"{unit}.")
    above = other != "autosched" and unit.startswith(f"{other}.")
    return within or above or other in ALLOWED[unit]


def test_every_module_has_a_place():
    homeless = [module for module in MODULES if unit_of(module) is None]
    assert not homeless, f"not in the import order of tests/test_structure.py: {homeless}"


def test_imports_run_one_way():
    upward = [
        f"{MODULES[module].relative_to(ROOT)}:{line}: {module} imports {target}"
        for module, target, line in arrows()
        if not is_allowed(module, target)
    ]
    assert not upward, "imports against the order:\n" + "\n".join(upward)


def test_the_reference_shares_nothing_with_the_optimiser():
    """But the stages of Winograd's algorithm: by them the error is defined that users accept, values are never theirs."""
    optimiser = ("autosched.te.rewrites", "autosched.schedule", "autosched.lower", "autosched.graph.passes")
    meant = [("autosched.te.reference.evaluate", "autosched.te.rewrites.winograd")]
    shared = [(a, b) for a, b, _ in arrows() if a.startswith("autosched.te.reference") and b.startswith(optimiser)]
    assert shared == meant


def test_imports_have_no_cycle():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, target, _ in arrows():
        if module != target and (module, target) not in EXCEPTIONS:
            graph[module].add(target)
    cycle = find_cycle(graph)
    assert not cycle, "modules import each other in a circle: " + " -> ".join(cycle)


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one cycle, the first again at the end; empty when there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for target in sorted(graph[node]):
            if cycle := visit(target):
                return cycle
        path.pop()
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node))), [])


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("autosched.te.dag", "autosched.ir.expr", True),
        ("autosched.ir.expr", "autosched.te.dag", False),
        ("autosched.errors", "autosched.ir.expr", False),
        ("autosched.tuner.session", "autosched.store", True),
        ("autosched.tuner.session", "search_spaces.space", False),
        ("autosched.tuner.session", "cost_model.cpu.features", False),
        ("autosched.tuner.task", "search_spaces.space", False),
        ("autosched.kernel.task", "search_spaces.space", True),
        ("autosched.kernel.task", "autosched.api", False),
        ("autosched.tuner.session", "autosched.tuner.task", True),
        ("autosched.tuner.task", "autosched.tuner.protocols", True),
        ("autosched.tuner.task", "autosched.api", False),
        ("search_spaces.cpu", "autosched.lower.symbolic.nest", True),
        ("search_spaces.cpu", "autosched.codegen.source", False),
        ("search_spaces.cpu", "cost_model.cpu.features", False),
        ("cost_model.cpu.features", "autosched.lower.symbolic.nest", True),
        ("cost_model.cpu.features", "autosched.te.dag", False),
        ("cost_model.cpu.features", "search_spaces.space", False),
        ("autosched.store.database", "autosched", False),
        ("autosched.cli.main", "autosched.api", True),
        ("autosched.api", "autosched.cli.main", False),
        ("autosched.api", "autosched.tuner.task", True),
        ("autosched.tuner.session", "autosched.api", False),
        ("experiments.scoreboard", "autosched.cli.main", True),
        ("autosched.cli.main", "experiments.scoreboard", False),
    ],
)
def test_the_order_itself(module, target, allowed):
    assert is_allowed(module, target) is allowed


def test_the_import_reader_itself():
    source = """
import autosched.ir.expr, json
from autosched import te, errors as e
from autosched.ir import stmt
from autosched.errors import UsageError
from . import dag
from .dag import ComputeDAG
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import autosched.store
else:
    import autosched.measure
def f():
    from autosched.lower.symbolic.nest import lower
"""
    known = {
        *("autosched", "autosched.ir", "autosched.ir.expr", "autosched.ir.stmt", "autosched.te", "autosched.te.dag"),
        *("autosched.errors", "autosched.store", "autosched.measure", "autosched.lower.symbolic.nest"),
    }
    assert [name for name, _ in imported("autosched.te.checks", ast.parse(source), False, known)] == [
        *("autosched.ir.expr", "autosched.te", "autosched.errors", "autosched.ir.stmt", "autosched.errors"),
        *("autosched.te.dag", "autosched.te.dag", "autosched.measure", "autosched.lower.symbolic.nest"),
    ]


def test_the_cycle_finder_itself():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("statement", ["import autosched", "import autosched, autosched.cli.main"])
def test_importing_loads_nothing_heavy(statement):
    probe = f"{statement}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}} & {set(HEAVY)}))"
    result = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


# Sizes


def test_no_file_is_too_long():
    lengths = {path.relative_to(ROOT): path.read_text(encoding="utf-8").count("\n") for path in python_files(*CODE)}
    long = [f"{path}: {n} lines" for path, n in lengths.items() if n > MAX_FILE_LINES]
    assert not long, f"over {MAX_FILE_LINES} lines:\n" + "\n".join(long)


def test_no_folder_has_too_many_modules():
    product = ("autosched", "search_spaces", "cost_model")
    n_modules = Counter(path.parent for path in python_files(*product) if path.name != "__init__.py")
    large = [f"{folder.relative_to(ROOT)}: {n} modules" for folder, n in n_modules.items() if n > MAX_MODULES]
    assert not large, f"over {MAX_MODULES} modules:\n" + "\n".join(large)


def test_no_function_is_too_long():
    long = []
    for path in python_files(*CODE):
        for node in functions_of(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines")
    assert not long, f"over {MAX_FUNCTION_LINES} lines:\n" + "\n".join(long)


def test_no_function_takes_too_much():
    """What belongs together is a record."""
    many = []
    for module, path in MODULES.items():
        for node in functions_of(path):
            n = len(parameters(node))
            if n > MAX_PARAMETERS and not may_take_many(f"{module}.{node.name}"):
                many.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {n} parameters")
    assert not many, f"over {MAX_PARAMETERS} parameters:\n" + "\n".join(many)


def may_take_many(name: str) -> bool:
    return any(name == known or name.startswith(f"{known}.") for known in MANY_PARAMETERS)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names, without a method's own object or class."""
    given = function.args
    names = [p.arg for p in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_the_count_of_parameters_itself():
    (function,) = ast.parse("def f(self, a, /, b, *rest, c=1, **others): ...").body
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == ["a", "b", "c"]
    assert may_take_many("autosched.te.operators.conv.conv2d")
    assert not may_take_many("autosched.api.tuned")


# Forbidden calls


def bound_names(tree: ast.Module) -> set[str]:
    """Names that a module defines or imports at its top, which then are not Python's own."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def is_constant(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) for everything that could run data as code or hand text to a shell."""
    own = bound_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, f"import {m}") for m in modules if m.split(".")[0] in FORBIDDEN_MODULES)
            if isinstance(node, ast.ImportFrom):
                pairs = ((node.module, alias.name) for alias in node.names)
                yield from ((node.lineno, f"{m}.{name}") for m, name in pairs if (m, name) in FORBIDDEN_ATTRIBUTES)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in FORBIDDEN_ATTRIBUTES:
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS - own:
                yield node.lineno, f"{node.func.id}()"
            for word in node.keywords:
                if word.arg in ("shell", "allow_pickle") and not is_constant(word.value, False):
                    yield node.lineno, f"{word.arg}="


def test_nothing_runs_data_as_code():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in python_files(*CODE, "tests")
        if MAY_BE_FORBIDDEN.search(path.read_text(encoding="utf-8"))
        for line, what in forbidden(tree_of(path))
    ]
    assert not found, "forbidden:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import json, marshal as m",
        "def f():\n    import shelve",
        "eval('1')",
        "exec(text)",
        "compile(text, 'f', 'exec')",
        "import builtins\nbuiltins.eval('1')",
        "os.system('ls')",
        "from os import system",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_gate_catches(source):
    assert list(forbidden(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('a')",
        "def compile(x): ...\ncompile(1)",
        "from autosched.api import compile\ncompile(1)",
        "subprocess.run(['ls'], shell=False)",
        "np.load(path, allow_pickle=False)",
        "'eval(x)'",
    ],
)
def test_the_gate_lets_pass(source):
    assert not list(forbidden(ast.parse(source)))


# The top level


def top_level() -> set[str]:
    """Names at the top of the repository: what git tracks, or everything where git does not answer."""
    try:
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    names = {line.split("/")[0].strip('"') for line in listing.splitlines()}
    return names or {name for name in os.listdir(ROOT) if not name.endswith(".egg-info")}


def test_the_top_level_holds_only_what_belongs_there():
    strange = (
        {name for name in top_level() if not name.startswith(".")}
        - TOP_LEVEL
        - OF_AN_SDIST
        - {"build", "dist", "__pycache__"}
    )
    assert not strange, f"at the top of the repository: {sorted(strange)}"


def test_mutation_testing_names_files_that_are_there():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    mutmut = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    named = [*mutmut["source_paths"], *mutmut["only_mutate"], *mutmut["pytest_add_cli_args_test_selection"]]
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


# Dtypes


def names_a_small_float(node: ast.AST) -> bool:
    """Whether `node` is about float16 or bfloat16 in particular, by its name or by its size."""
    if isinstance(node, ast.Constant):
        return node.value in SMALL_FLOATS
    if isinstance(node, ast.Attribute):
        return node.attr in SMALL_FLOATS
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute):
        size = {"bits": 16, "nbytes": 2, "itemsize": 2}.get(node.left.attr, 0)
        return size > 0 and any(
            isinstance(x, ast.Constant) and x.value == size for c in node.comparators for x in ast.walk(c)
        )
    return False


def test_small_floats_are_told_apart_in_few_places():
    """All others ask the row of DTYPES, so that another one is another row; experiments name what they measure."""
    found = {
        str(path.relative_to(ROOT))
        for path in python_files(*(name for name in CODE if name != "experiments"))
        if MAY_NAME_SMALL_FLOATS.search(path.read_text(encoding="utf-8"))
        and any(map(names_a_small_float, ast.walk(tree_of(path))))
    }
    assert found == SMALL_FLOATS_HOMES


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x.dtype == 'bfloat16'", True),
        ("torch.float16", True),
        ("HALVES = {'float16'}", True),
        ("DTYPES[d].nbytes == 2", True),
        ("DTYPES[d].bits in (8, 16)", True),
        ("DTYPES[d].nbytes == 4", False),
        ("'float16 is no number of its own'", False),
    ],
)
def test_the_finder_of_small_floats_itself(source, found):
    assert any(map(names_a_small_float, ast.walk(ast.parse(source)))) == found
