"""Command-line arguments that name networks, and the options that say how they are loaded.

    model.onnx   model.asc   model.pt2   model.gguf   path/to/file.py:function   package.module:function

These are an ONNX file, a saved network, a program of torch.export, a language model of llama.cpp, and functions that
return a torch module and inputs.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from autosched.cli import options
from autosched.errors import UsageError

if TYPE_CHECKING:
    from autosched.executor.model import Model
    from autosched.graph.graph import Array
    from autosched.graph.input_descriptions import DescribedInput
    from autosched.runtime.spec import ArraySpec

SYNTAX = (
    "MODEL.onnx, a saved MODEL.asc, MODEL.pt2 of torch.export.save, MODEL.gguf, FILE.py:FUNCTION or "
    "package.module:FUNCTION"
)
ONNX, SAVED, PROGRAM, GGUF = ".onnx", ".asc", ".pt2", ".gguf"


@dataclass(frozen=True)
class NamedNetwork:
    """A network named by the argument `word`. `model`: the path of its file, or a torch module or program for inputs
    like `example_inputs`. `sizes`: values of symbolic dimensions, in addition to those of --size."""

    word: str
    model: Any
    example_inputs: tuple[Any, ...] | None = None
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def suffix(self) -> str:
        """Suffix of its file; empty for a torch module or program."""
        return self.model.suffix.lower() if isinstance(self.model, Path) else ""

    @property
    def name(self) -> str:
        """Name of its file or function, with its sizes: for the names of result files."""
        is_file = isinstance(self.model, Path) or is_file_name(self.word)
        name = Path(self.word).stem if is_file else self.word.rpartition(":")[2]
        return " ".join([name, *(f"{dimension}={size}" for dimension, size in self.sizes)])


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", type=options.size, action="append", default=[], metavar="NAME=N",
        help="a symbolic dimension of a network; commands need the size of each, Python's load lets others vary",
    )  # fmt: skip
    parser.add_argument(
        "--fix", type=options.fixed, action="append", default=[], metavar="NAME=VALUE",
        help="an input of a network that is always the same: a number, a list as in [1, 2], or FILE.npy",
    )  # fmt: skip


def add_size_lists(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes", type=options.sizes, action="append", default=[], metavar="NAME=N,N,..",
        help="several sizes of a symbolic dimension: a network for each, tuned together; of a workload the range of an "
        "argument, as in M=1:4096",
    )  # fmt: skip
    parser.add_argument(
        "--at", type=options.sizes, action="append", default=[], metavar="NAME=N,N,..",
        help="sizes in the range of an argument to tune for, with --sizes of a workload",
    )  # fmt: skip


def with_size_lists(
    networks: Sequence[NamedNetwork], lists: Sequence[tuple[str, tuple[int, ...] | range]]
) -> list[NamedNetwork]:
    """Return each network with each combination of the sizes in `lists`. Raises UsageError for ranges."""
    for name, sizes in lists:
        if isinstance(sizes, range):
            raise UsageError(f"--sizes of a network are numbers, as in {name}=1,4,16, got a range of {name}")
    combinations = list(itertools.product(*([(name, size) for size in sizes] for name, sizes in lists)))
    return [replace(network, sizes=each) for network in networks for each in combinations]


def add_scheduler_options(group: argparse._ArgumentGroup) -> None:
    """Add --strategy and --objective of the task scheduler."""
    group.add_argument(
        "--strategy", metavar="NAME",
        help="of networks: which task is measured next, gradient (default), gain or round-robin",
    )  # fmt: skip
    group.add_argument(
        "--objective", metavar="WHAT",
        help="of networks: what is minimised, sum (default), required:NAME=TIME,.., speedup, early-stop or "
        "FILE.py:FUNCTION of the seconds of each",
    )  # fmt: skip


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the options of loading a network."""
    add_sizes(parser)
    parser.add_argument(
        "--set", dest="settings", type=options.setting, action="append", default=[], metavar="K=V",
        help="an argument of FUNCTION",
    )  # fmt: skip
    parser.add_argument("--threads", type=options.integer(1), metavar="N", help="default: the processor's cores")
    parser.add_argument(
        "--strict", action="store_true", help="refuse an ONNX file with operators that another engine would run"
    )
    options.add_winograd(parser, "a network's 3x3 convolutions may take fewer operations, with a larger error")


def add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--simulate", action="store_true", help="execute a network's kernels for CUDA on the processor, without a GPU"
    )


def add_record_or_network(parser: argparse.ArgumentParser) -> None:
    """Add an argument that is a record's id or a network, and the options of both."""
    parser.add_argument("id", type=record_or_network, metavar="ID|MODEL.onnx", help=f"a record's number, or {SYNTAX}")
    options.add_record_facts(parser)
    add_network(parser)


def check_record(args: argparse.Namespace, *network_options: str) -> None:
    """Raise UsageError if options of networks are given with a record's id."""
    for name in ("size", "fix", "set", "threads", "winograd", "strict", *network_options):
        if getattr(args, {"set": "settings"}.get(name, name)):
            raise UsageError(f"--{name} is for networks, and {args.id} is the number of a record")


def record_or_network(text: str) -> int | str:
    """Return a record's id as an integer, any other text unchanged."""
    return options.integer(1)(text) if text.lstrip("+-").isdigit() or not text else text


def is_file_name(word: str) -> bool:
    return Path(word).suffix.lower() in (ONNX, SAVED, PROGRAM, GGUF)


def is_network_name(word: str) -> bool:
    """Return whether a word may name a network: built-in workloads have neither colon nor suffix."""
    return ":" in word or Path(word).suffix != ""


def find_file(word: str) -> NamedNetwork | None:
    """Return the network of a file; None if the word names no file. Raises UsageError for a file of another format."""
    path = Path(word)
    if path.suffix.lower() == PROGRAM:
        from autosched.graph.torch.program import example_tensors, read_program

        program = read_program(path)
        examples = example_tensors(program)
        return NamedNetwork(word, program, None if examples is None else tuple(examples))
    if is_file_name(word):
        return NamedNetwork(word, path)
    if path.suffix not in ("", ".py") and path.exists():
        from autosched.graph.file_formats import describe_format

        what = describe_format(path)
        raise UsageError(f"{word} is {what or 'a file of a kind that is not known'}; a network is {SYNTAX}")
    return None


def find_network(word: str, settings: Mapping[str, int | str]) -> NamedNetwork | None:
    """Return the network that a word names; None for a workload, built in or a user's function.

    A function is called with the arguments `settings`. Raises UsageError unless it returns a network or a workload.
    """
    if (file := find_file(word)) is not None or ":" not in word:
        return file
    from autosched.te import Tensor, workload_file

    called = workload_file.call(word, settings)
    result = called.result
    results = result if isinstance(result, (tuple, list)) else (result,)
    if results and all(isinstance(each, Tensor) for each in results):
        return None
    if len(results) != 2 or not hasattr(results[0], "forward"):
        types = ", ".join(type(each).__name__ for each in results)
        raise UsageError(
            f"{called.where}: {called.name} must return a torch module and a tuple of inputs for it, or tensors made "
            f"by te.compute, but returned ({types})"
        )
    module, inputs = results
    return NamedNetwork(word, module, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,))


def find_networks(words: Sequence[str], settings: Mapping[str, int | str]) -> list[NamedNetwork]:
    """Return the networks that the words name; none if there is one word, for a workload. Raises UsageError for a
    workload beside networks."""
    networks = [find_network(word, settings) for word in words]
    for word, network in zip(words, networks, strict=True):
        if network is None and len(words) > 1:
            raise UsageError(f"{word} is no network, and only networks are tuned together: {SYNTAX}")
    return [network for network in networks if network is not None]


def require_network(word: str, args: argparse.Namespace) -> NamedNetwork:
    """Return the network that a word names. Raises UsageError for a word that names none, and for options that do not
    fit the network."""
    network = find_network(word, options.settings(args))
    if network is None:
        raise UsageError(f"{word} is no network: {args.verb} takes {SYNTAX}")
    check_options(network, args)
    return network


def check_options(network: NamedNetwork, args: argparse.Namespace) -> None:
    """Raise UsageError for --size with a network without symbolic dimensions, and for --set with a file.

    Turns on the progress of loading on terminals.
    """
    from autosched.graph.load_progress import show_on_terminal

    show_on_terminal()
    for option in ("size", "sizes"):
        if getattr(args, option, None) and network.suffix not in (ONNX, GGUF):
            raise UsageError(
                f"--{option} says what symbolic dimensions of an ONNX or GGUF file are, and {network.word} has none"
            )
    if "id" in args and args.workload:
        raise UsageError(f"--workload is for records, and {network.word} is a network")
    if args.settings and is_file_name(network.word):
        raise UsageError(f"--set gives arguments to a function, and {network.word} is a file")


def load_network(network: NamedNetwork, args: argparse.Namespace) -> Model:
    """Load a network with the options of `add_network`. Raises UnknownSizes for symbolic dimensions without a size."""
    from autosched.executor.compile_options import NOW, CompileOptions
    from autosched.network_api import load_fixed

    compile_options = CompileOptions(
        target=options.target_text(args) if "mcpu" in args else args.target or "cpu",
        threads=args.threads,
        db=args.db,
        simulate="simulate" in args and args.simulate,
        winograd=bool(args.winograd),
        strict="strict" in args and args.strict,
        specialise=NOW,
    )
    given, fixed = sizes([*args.size, *network.sizes]), fixed_values(args.fix)
    return load_fixed(network.model, network.example_inputs, given, fixed, options=compile_options)


def with_sizes_of_inputs(network: NamedNetwork, path: Path | None, args: argparse.Namespace) -> NamedNetwork:
    """Return an ONNX network with the symbolic dimensions of the arrays in the file `path`, except those of --size."""
    if path is None or network.suffix != ONNX:
        return network
    from autosched.graph.onnx import read_onnx

    given, file = {name for name, _ in args.size}, read_onnx(network.model, fixed_values(args.fix))
    missing = {name: at for name, at in file.symbolic_dimensions().items() if name not in given}
    if not missing:
        return network
    shapes = dict(zip(names := file.inputs(), (array.shape for array in _read(path, names)), strict=True))
    sizes = tuple((name, shapes[x][axis]) for name, (x, axis) in missing.items() if axis < len(shapes[x]))
    return replace(network, sizes=sizes)


def arrays_for(
    specs: Sequence[ArraySpec], network: NamedNetwork, path: Path | None, fixed: Collection[str] = ()
) -> list[Array] | None:
    """Return an array for each input that is not `fixed`: from the file `path`, else the network's example inputs, else
    None.

    Raises UsageError if the file's arrays do not have the names of the inputs.
    """
    from autosched.ir.dtype import DTYPES
    from autosched.runtime.tensors import as_input

    if path is not None:
        given = _read(path, [spec.name for spec in specs])
    elif network.example_inputs is not None:
        given = [x for x in network.example_inputs if hasattr(x, "shape")]
        if fixed:
            names = [described.name for described in inputs_of(network)]
            given = [x for name, x in zip(names, given, strict=True) if name not in fixed]
    else:
        return None
    if len(given) != len(specs):
        raise UsageError(f"{network.word} has {len(given)} example inputs, but the network takes {len(specs)}")
    # Texts are inputs of nodes that another engine runs, which checks them.
    return [as_input(s, x) if s.dtype in DTYPES else x for s, x in zip(specs, given, strict=True)]


def inputs_of(network: NamedNetwork) -> tuple[DescribedInput, ...]:
    """Return descriptions of all inputs, including fixed ones; symbolic dimensions have names."""
    from autosched.graph.input_descriptions import describe_inputs

    return describe_inputs(network.model, network.example_inputs)


def inputs_text(network: NamedNetwork, args: argparse.Namespace) -> str:
    """Return a text on the network's inputs and on how to write a file of them."""
    fixed = fixed_values(args.fix)
    inputs = [described for described in inputs_of(network) if described.name not in fixed]
    are_identifiers = all(described.name.isidentifier() for described in inputs)
    words = [f"{d.name}=..." if are_identifiers else f"{d.name!r}: ..." for d in inputs]
    arrays = ", ".join(words) if are_identifiers else f"**{{{', '.join(words)}}}"
    return f"{'; '.join(map(str, inputs)) or 'none'} (in Python: numpy.savez('FILE.npz', {arrays}))"


def _read(path: Path, names: Sequence[str]) -> list[Array]:
    """Return the arrays of a file in the order of `names`."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, BadZipFile) as error:
        raise UsageError(f"the inputs cannot be read from {path}, which must be made by np.savez: {error}") from error
    if set(given) != set(names):
        raise UsageError(
            f"{path} has the arrays {', '.join(given) or 'none'}, but the network takes {', '.join(names)}"
        )
    return [given[name] for name in names]


def fixed_values(given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of --fix by name: numbers, lists, and arrays of files."""
    values: dict[str, Any] = {}
    for name, value in given:
        if values.setdefault(name, value) != value:
            raise UsageError(f"--fix {name} has two values, {values[name]} and {value}: give one")
    return {name: _read_array(value) if isinstance(value, Path) else value for name, value in values.items()}


def _read_array(path: Path) -> Array:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"no array can be read from {path}, which must be made by np.save: {error}") from error
    return np.asarray(array)


def sizes(given: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the values of --size by name."""
    values: dict[str, int] = {}
    for name, value in given:
        if values.setdefault(name, value) != value:
            raise UsageError(f"--size {name} has two values, {values[name]} and {value}: give one")
    return values
