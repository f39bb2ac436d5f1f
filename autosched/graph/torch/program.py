"""Import of torch.export programs, from objects and from the files that torch.export.save writes.

torch itself reads such a file; it would unpickle objects, load libraries, and evaluate the text of symbolic sizes. So
files with more than tensors and arithmetic are refused first.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from autosched.errors import GraphError
from autosched.graph.file_formats import describe_format, has_program
from autosched.graph.graph import Graph
from autosched.graph.torch.load import decompositions, for_inputs, of_program, without_treespec_warnings

# The tokens of torch's arithmetic on sizes: symbols, numbers and functions.
_WORD = (
    r"[suz]\d+|\d+(?:\.\d+)?|Max|Min|Mod|Abs|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Add|Mul|Integer|Rational|oo|int_oo|"
    r"true|false|True|False"
)
_FUNCTION = (
    r"FloorDiv|CeilDiv|CleanDiv|PythonMod|ModularIndexing|Where|Pow\w*|IntTrueDiv|FloatTrueDiv|FloorToInt|CeilToInt|"
    r"TruncToInt|ToFloat|RoundToInt|Identity|Piecewise|floor|ceiling"
)
_OPERATOR = re.compile(r"torch\.ops(\.(?!__)\w+){2,3}|_?operator\.\w+|math\.\w+|torch\._?sym_\w+")
_QUOTED = r"Symbol\('\w+'(?:, \w+=(?:True|False))*\)|Float\('[-+.e\d]+', precision=\d+\)"
_ARITHMETIC = re.compile(rf"(?:\s|[-+*/%(),<>=&|~]|{_QUOTED}|\b(?:{_WORD}|{_FUNCTION})\b)*")


def is_program(model: object) -> bool:
    return isinstance(model, torch.export.ExportedProgram)


def load_program(program: Any, example_inputs: Sequence[Any] | None = None, name: str = "program") -> Graph:
    """Return the graph of an exported program. Raises GraphError.

    Symbolic sizes are those of `example_inputs`, or else of the inputs that the program was exported with.
    """
    inputs = example_tensors(program) if example_inputs is None else list(example_inputs)
    with torch.no_grad(), without_treespec_warnings():
        try:
            decomposed = program.run_decompositions(decompositions())
        except Exception as error:  # of many kinds
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise GraphError(f"torch.export cannot decompose {name}: {reason}") from error
    sizes = [x for node in decomposed.graph.find_nodes(op="placeholder") for x in _shape(node.meta.get("val"))]
    if all(isinstance(size, int) for size in sizes):
        return of_program(name, decomposed)
    if inputs is None:
        raise GraphError(f"{name} has symbolic sizes, and no inputs were saved with it: give example_inputs")
    traced = for_inputs(decomposed, inputs)
    if traced is None:
        shapes = ", ".join(str(list(x.shape)) for x in inputs if isinstance(x, torch.Tensor))
        raise GraphError(f"{name} was exported for other inputs than example_inputs of the shapes {shapes}")
    return of_program(name, decomposed, traced)


def example_tensors(program: Any) -> list[Any] | None:
    """Return the inputs that a program was exported with, in its order, or None."""
    given = program.example_inputs
    return None if given is None else list(_pytree.tree_leaves(given))


def described_inputs(program: Any) -> Iterator[tuple[str, str, tuple[int | str, ...]]]:
    """Yield name, type and shape of each tensor input of a program, with symbols for symbolic sizes."""
    places = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        value = places[spec.arg.name].meta.get("val") if spec.kind.name == "USER_INPUT" else None
        if isinstance(value, torch.Tensor):
            sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
            yield spec.arg.name, str(value.dtype).removeprefix("torch."), sizes


def parameter_names(module: torch.nn.Module, count: int) -> tuple[str, ...]:
    """Return torch.export's names of the first `count` tensor inputs of a module."""
    names: list[str] = []
    for name, parameter in inspect.signature(module.forward).parameters.items():
        is_many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{n}" for n in range(count)] if is_many else [name]
    return tuple(names[:count])


def _shape(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, torch.Tensor) else [value] if isinstance(value, torch.SymInt) else []


def read_program(path: Path) -> Any:
    """Read an exported program. Raises GraphError for other files, and for files with more than data."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not has_program(names):
                raise GraphError(f"{path} is no program of torch.export.save, but {describe_format(path)}")
            _check_archive(path, archive)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        what = describe_format(path) or "damaged"
        raise GraphError(f"{path} is no program of torch.export.save, but {what} ({error})") from error
    logger = logging.getLogger("torch.export")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # torch logs the traceback of what it raises
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(str(path))
    except Exception as error:  # of many kinds
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise GraphError(f"torch {torch.__version__} cannot read {path}: {reason}") from error
    finally:
        logger.setLevel(level)


def _check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise GraphError for libraries, pickled objects and text that is no arithmetic."""
    for name in archive.namelist():
        inner = name.partition("/")[2]
        if inner.startswith("data/aotinductor/"):
            raise GraphError(f"{path} has compiled code in {inner}: save the program alone, by torch.export.save")
        if inner.startswith("data/") and inner.endswith(".pt"):
            try:
                torch.load(io.BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
            except Exception as error:
                raise GraphError(f"{path} has pickled objects in {inner}, which are never read") from error
        if not inner.endswith(".json"):
            continue
        for key, value in _entries(json.loads(archive.read(name))):
            if key == "use_pickle" and value:
                raise GraphError(f"{path} has pickled tensors, of a class of their own, which are never read")
            if key == "path_name" and str(value).startswith(("custom_obj", "opaque_obj")):
                raise GraphError(f"{path} has the object {value}, of a class of its own, which is never read")
            if key == "nodes" and (other := _first_other(value)):
                raise GraphError(f"{path} calls {other}, which is no operator of torch")
            if key in ("expr_str", "as_expr") and isinstance(value, str) and not _ARITHMETIC.fullmatch(value):
                raise GraphError(f"{path} has a size that is no arithmetic: {value[:80]!r}")


def _first_other(nodes: Any) -> str:
    """Return the target of the first node that calls something else than an operator; empty if there is none."""
    targets = [str(node.get("target")) for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return next((target[:80] for target in targets if not _OPERATOR.fullmatch(target)), "")


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    open_ = [data]
    while open_:
        at = open_.pop()
        if isinstance(at, dict):
            yield from at.items()
            open_ += at.values()
        elif isinstance(at, list):
            open_ += at
