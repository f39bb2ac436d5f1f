"""Operators from the user's own file: `path/to/file.py:function`; functions of a package: `package.module:function`.

The file is ordinary Python and is run as such. Whatever goes wrong in it becomes one sentence that names
the file and the line of the user that failed.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from autosched.errors import AutoschedError, UsageError
from autosched.ir.types import recorded_type
from autosched.te.dag import ComputeDAG
from autosched.te.tensor import Tensor

_WORDS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class UserCall:
    """What a user's function returned for its arguments. `where`: its file and line."""

    result: Any
    name: str
    arguments: Mapping[str, Any]
    where: str


def load(spec: str, settings: Mapping[str, str | int] | None = None) -> tuple[ComputeDAG, dict[str, Any]]:
    """The DAG of the tensors that the function of a file returns, with its description.

    Raises UsageError as `call` does, and for a result that is not a tensor.
    """
    if not is_of_file(spec):
        raise UsageError(f"a function of your own is written path/to/file.py:function, but got {spec!r}")
    called = call(spec, settings)
    dag = _dag(called.result, called.name, called.where)
    arguments = dict(called.arguments)
    dtype = arguments.get("dtype", dag.outputs[0].dtype)
    return dag, {"name": spec, "args": arguments, "dtype": str(dtype)}


def call(spec: str, settings: Mapping[str, str | int] | None = None) -> UserCall:
    """Imports the file or module and calls the function.

    Its parameters are its arguments: `settings` (K=V) override their defaults and take the defaults' types. Raises
    UsageError for a missing file, module or function, an unknown or missing argument, or an exception in the user's
    code.
    """
    home, _, name = spec.rpartition(":")
    if not home or not name.isidentifier():
        raise UsageError(f"a function is written path/to/file.py:function or package.module:function, got {spec!r}")
    path = _file(home) if is_of_file(spec) else None
    with _importable(Path.cwd() if path is None else path.parent):
        module = _import_named(home) if path is None else _import(path)
        path = path or Path(module.__file__ or home)
        function = _function(module, path, name)
        arguments = _arguments(spec, function, settings or {})
        try:
            result = function(**arguments)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{_place(error, path)}: {name} failed: {_reason(error)}") from error
    return UserCall(result, name, arguments, f"{path.name}:{_line(function)}")


def find_function(spec: str) -> Callable[..., Any]:
    """A function `path/to/file.py:function` that is called later, inside `called_by_us`. Raises UsageError for a
    missing file or function, and for a file that cannot be imported."""
    home, _, name = spec.rpartition(":")
    path = _file(home)
    with _importable(path.parent):
        return _function(_import(path), path, name)


@contextmanager
def called_by_us(what: str, function: Callable[..., Any]) -> Iterator[None]:
    """Makes a UsageError of an exception in the user's `function`, which is called inside; `what` says what it is."""
    try:
        yield
    except (Exception, SystemExit) as error:
        code = getattr(function, "__code__", None)
        where = "" if code is None else f" at {_place(error, Path(code.co_filename))}"
        raise UsageError(f"{what} failed{where}: {_reason(error)}") from error


def is_of_file(spec: str) -> bool:
    """Whether a word is `path/to/file.py:function`."""
    file, colon, name = spec.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


def _file(file: str) -> Path:
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}; a function of your own is written path/to/file.py:function")
    return path.resolve()


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Modules beside the user's file can be imported, as when Python runs the file."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"autosched_user_{path.stem}", path)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise UsageError(f"{_place(error, path)}: the file cannot be imported: {_reason(error)}") from error
    return module


def _import_named(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"the module {name} cannot be imported: {_reason(error)}") from error


def _function(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    attribute = getattr(module, name, None)
    if callable(attribute):
        function: Callable[..., Any] = inspect.unwrap(attribute)  # a decorator of ours keeps the user's function inside
        return function
    local = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    near = difflib.get_close_matches(name, local, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it defines {', '.join(local) or 'no function'}"
    problem = "no function" if attribute is None else f"no function but {_a(type(attribute))}"
    raise UsageError(f"{path.name} has {problem} {name!r}; {hint}")


def _arguments(spec: str, function: Callable[..., Any], settings: Mapping[str, str | int]) -> dict[str, Any]:
    """Every parameter by name: its default, or the setting in the type of the default."""
    where = f"{spec} (line {_line(function)})"
    parameters = inspect.signature(function).parameters
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in settings:
        if key not in named:
            near = difflib.get_close_matches(key, named, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its arguments are {', '.join(named) or 'none'}"
            raise UsageError(f"{where} has no argument {key!r}; {hint}")
    missing = [n for n, p in named.items() if p.default is p.empty and n not in settings]
    if missing:
        raise UsageError(f"{where} needs a value for {', '.join(missing)}; give it a default or set {missing[0]}=...")
    values: dict[str, Any] = {}
    for n, p in named.items():
        default = recorded_type(p.default)
        values[n] = _typed(where, n, settings[n], default) if n in settings else default
    return values


def _typed(where: str, key: str, value: str | int, default: Any) -> Any:
    """A setting as the type of the parameter's default; without a default, a number where it reads as one."""
    kind: type = str if default is None or default is inspect.Parameter.empty else type(default)
    try:
        if kind is bool:
            return _WORDS[str(value).lower()]
        if kind is int or kind is float:
            return kind(value)
    except (ValueError, KeyError):
        expected = f"{_a(kind)}, like its default {default}"
        raise UsageError(f"{where}: {key} must be {expected}, but is {value!r}") from None
    if kind is str and not isinstance(default, str):
        try:
            return int(value)
        except ValueError:
            return value
    if kind is str:
        return str(value)
    raise UsageError(f"{where}: {key} has a default of type {kind.__name__}, which cannot be set from a word")


def _dag(result: Any, name: str, where: str) -> ComputeDAG:
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    for output in outputs:
        if not isinstance(output, Tensor):
            raise UsageError(
                f"{where}: {name} must return a tensor or a tuple of tensors made by te.compute but returned "
                f"{'nothing' if output is None else _a(type(output))}"
            )
    try:
        return ComputeDAG(tuple(outputs))
    except AutoschedError as error:
        raise UsageError(f"{where}: {name}: {error}") from error


def _a(kind: type) -> str:
    """The name of a type with its article."""
    return f"{'an' if kind.__name__[0] in 'aeio' else 'a'} {kind.__name__}"


def _line(function: Callable[..., Any]) -> int:
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code is not None else 1


def _place(error: BaseException, path: Path) -> str:
    """file:line of the innermost frame that is in the user's file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path.name}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path.name}:{lines[-1]}" if lines else path.name


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, AutoschedError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
