"""Which words are networks: an ONNX file, a saved network, a program of torch.export, or a function that returns a
torch module and inputs.

    model.onnx   model.asc   model.pt2   path/to/file.py:function   package.module:function

A verb that takes networks beside records or workloads asks here what a word is.
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

FORMS = "MODEL.onnx, a saved MODEL.asc, MODEL.pt2 of torch.export.save, FILE.py:FUNCTION or package.module:FUNCTION"
ONNX, SAVED, PROGRAM = ".onnx", ".asc", ".pt2"


@dataclass(frozen=True)
class NamedNetwork:
    """A network that a word names. `model`: the path of a file, or a torch module or program for inputs as
    `example_inputs`; `sizes`: what symbolic dimensions are, beside those that --size says."""

    word: str
    model: Any
    example_inputs: tuple[Any, ...] | None = None
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def suffix(self) -> str:
        """Of its file; empty for a torch module or program."""
        return self.model.suffix.lower() if isinstance(self.model, Path) else ""

    @property
    def name(self) -> str:
        """For files about it: that of its file, or of the function."""
        is_file = isinstance(self.model, Path) or is_file_name(self.word)
        name = Path(self.word).stem if is_file else self.word.rpartition(":")[2]
        return " ".join([name, *(f"{dimension}={size}" for dimension, size in self.sizes)])


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", type=options.size, action="append", default=[], metavar="NAME=N",
        help="a symbolic dimension of a network",
    )  # fmt: skip
    parser.add_argument(
        "--fix", type=options.fixed, action="append", default=[], metavar="NAME=VALUE",
        help="an input of a network that is always the same: a number, a list as in [1, 2], or FILE.npy",
    )  # fmt: skip


def add_several_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes", type=options.sizes, action="append", default=[], metavar="NAME=N,N,..",
        help="several sizes of a symbolic dimension: a network for each, tuned together",
    )  # fmt: skip


def of_sizes(networks: Sequence[NamedNetwork], several: Sequence[tuple[str, tuple[int, ...]]]) -> list[NamedNetwork]:
    """Each network for each combination of several sizes."""
    combined = list(itertools.product(*([(name, size) for size in sizes] for name, sizes in several)))
    return [replace(network, sizes=each) for network in networks for each in combined]


def add_shares(group: argparse._ArgumentGroup) -> None:
    """What says which kernels of networks are measured most."""
    group.add_argument(
        "--strategy", metavar="NAME",
        help="of networks: which task is measured next, gradient (default), gain or round-robin",
    )  # fmt: skip
    group.add_argument(
        "--objective", metavar="WHAT",
        help="of networks: what is made small, sum (default), required:NAME=TIME,.., speedup, early-stop or "
        "FILE.py:FUNCTION of the seconds of each",
    )  # fmt: skip


def add_network(parser: argparse.ArgumentParser) -> None:
    """What says how a network is loaded."""
    add_sizes(parser)
    parser.add_argument(
        "--set", dest="settings", type=options.setting, action="append", default=[], metavar="K=V",
        help="an argument of FUNCTION",
    )  # fmt: skip
    parser.add_argument("--threads", type=options.integer(1), metavar="N", help="default: the processor's cores")
    options.add_winograd(parser, "a network's 3x3 convolutions may take fewer operations, with a larger error")


def add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--simulate", action="store_true", help="execute a network's kernels for CUDA on the processor, without a GPU"
    )


def add_record_or_network(parser: argparse.ArgumentParser) -> None:
    """A record by its number, with what says which, or a network, with what says how it is loaded."""
    parser.add_argument("id", type=record_or_network, metavar="ID|MODEL.onnx", help=f"a record's number, or {FORMS}")
    options.add_record_facts(parser)
    add_network(parser)


def check_record(args: argparse.Namespace, *only_networks: str) -> None:
    """Raises UsageError where a record is asked for with options of networks."""
    for name in ("size", "fix", "set", "threads", "winograd", *only_networks):
        if getattr(args, {"set": "settings"}.get(name, name)):
            raise UsageError(f"--{name} is for networks, and {args.id} is the number of a record")


def record_or_network(text: str) -> int | str:
    """A record's number as a number, anything else as it is."""
    return options.integer(1)(text) if text.lstrip("+-").isdigit() or not text else text


def is_file_name(word: str) -> bool:
    return Path(word).suffix.lower() in (ONNX, SAVED, PROGRAM)


def is_network_name(word: str) -> bool:
    """Whether a word may be a network, and is no name of a built-in workload, which has neither colon nor suffix."""
    return ":" in word or Path(word).suffix != ""


def find_file(word: str) -> NamedNetwork | None:
    """The network that is a file of this name. Raises UsageError for a file that is no network."""
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
        raise UsageError(f"{word} is {what or 'a file of a kind that is not known'}; a network is {FORMS}")
    return None


def find_network(word: str, settings: Mapping[str, int | str]) -> NamedNetwork | None:
    """The network that a word names; None for a workload, be it built in or a function of the user's.

    A function is called, with `settings` as its arguments. Raises UsageError for one that returns neither.
    """
    if (file := find_file(word)) is not None or ":" not in word:
        return file
    from autosched.te import Tensor, workload_file

    called = workload_file.call(word, settings)
    result = called.result
    parts = result if isinstance(result, (tuple, list)) else (result,)
    if parts and all(isinstance(part, Tensor) for part in parts):
        return None
    if len(parts) != 2 or not hasattr(parts[0], "forward"):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(
            f"{called.where}: {called.name} must return a torch module and a tuple of inputs for it, or tensors made "
            f"by te.compute, but returned ({kinds})"
        )
    module, inputs = parts
    return NamedNetwork(word, module, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,))


def find_networks(words: Sequence[str], settings: Mapping[str, int | str]) -> list[NamedNetwork]:
    """The networks that several words name; none where the only one names a workload. Raises UsageError for a workload
    beside others."""
    found = [find_network(word, settings) for word in words]
    for word, network in zip(words, found, strict=True):
        if network is None and len(words) > 1:
            raise UsageError(f"{word} is no network, and only networks are tuned together: {FORMS}")
    return [network for network in found if network is not None]


def the_network(word: str, args: argparse.Namespace) -> NamedNetwork:
    """The network that a word names. Raises UsageError where it names none, or where --size is given to one that has
    no symbolic dimensions."""
    found = find_network(word, options.settings(args))
    if found is None:
        raise UsageError(f"{word} is no network: {args.verb} takes {FORMS}")
    check_options(found, args)
    return found


def check_options(found: NamedNetwork, args: argparse.Namespace) -> None:
    """Raises UsageError where --size is given to a network that has no symbolic dimensions, or --set to a file. What is
    loaded after that is told on a terminal."""
    from autosched.graph.load_progress import show_on_terminal

    show_on_terminal()
    for option in ("size", "sizes"):
        if getattr(args, option, None) and found.suffix != ONNX:
            raise UsageError(f"--{option} says what symbolic dimensions of an ONNX file are, and {found.word} has none")
    if "id" in args and args.workload:
        raise UsageError(f"--workload is for records, and {found.word} is a network")
    if args.settings and is_file_name(found.word):
        raise UsageError(f"--set gives arguments to a function, and {found.word} is a file")


def load_network(found: NamedNetwork, args: argparse.Namespace) -> Model:
    """The network as one program, with what `add_network` has asked for."""
    from autosched import api

    return api.load(
        found.model,
        found.example_inputs,
        sizes=sizes([*args.size, *found.sizes]),
        inputs=fixed_values(args.fix),
        target=options.target_text(args) if "mcpu" in args else args.target or "cpu",
        threads=args.threads,
        db=args.db,
        simulate="simulate" in args and args.simulate,
        winograd=bool(args.winograd),
    )


def sized_by(network: NamedNetwork, path: Path | None, args: argparse.Namespace) -> NamedNetwork:
    """An ONNX file whose symbolic dimensions are those of the arrays in the file `path`, but for those that are
    given."""
    if path is None or network.suffix != ONNX:
        return network
    from autosched.graph.onnx import read_onnx

    known, file = {name for name, _ in args.size}, read_onnx(network.model, fixed_values(args.fix))
    missing = {name: at for name, at in file.symbolic_dimensions().items() if name not in known}
    if not missing:
        return network
    shapes = dict(zip(names := file.inputs(), (array.shape for array in _read(path, names)), strict=True))
    found = [(name, shapes[x][at]) for name, (x, at) in missing.items() if at < len(shapes[x])]
    return replace(network, sizes=tuple(found))


def arrays_for(
    specs: Sequence[ArraySpec], network: NamedNetwork, path: Path | None, fixed: Collection[str] = ()
) -> list[Array] | None:
    """An array for each input that is not `fixed`: of the file `path`, else the network's example inputs; None where it
    has none.

    Raises UsageError for a file that has not exactly the arrays of the inputs' names.
    """
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
    return [as_input(spec, value) for spec, value in zip(specs, given, strict=True)]


def inputs_of(network: NamedNetwork) -> tuple[DescribedInput, ...]:
    """All inputs, fixed ones too, with symbolic dimensions by their names."""
    from autosched.graph.input_descriptions import describe_inputs

    return describe_inputs(network.model, network.example_inputs)


def inputs_text(network: NamedNetwork, args: argparse.Namespace) -> str:
    """What a network takes and how a file with it is written."""
    fixed = fixed_values(args.fix)
    found = [described for described in inputs_of(network) if described.name not in fixed]
    plain = all(described.name.isidentifier() for described in found)
    words = [f"{d.name}=..." if plain else f"{d.name!r}: ..." for d in found]
    arrays = ", ".join(words) if plain else f"**{{{', '.join(words)}}}"
    return f"{'; '.join(map(str, found)) or 'none'} (in Python: numpy.savez('FILE.npz', {arrays}))"


def _read(path: Path, names: Sequence[str]) -> list[Array]:
    """The arrays of a file, in the order of `names`."""
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
    """What --fix says, by name: numbers, lists, and arrays of files."""
    found: dict[str, Any] = {}
    for name, value in given:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--fix {name} has two values, {found[name]} and {value}: give one")
    return {name: _read_array(value) if isinstance(value, Path) else value for name, value in found.items()}


def _read_array(path: Path) -> Array:
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"no array can be read from {path}, which must be made by np.save: {error}") from error
    return np.asarray(found)


def sizes(given: Sequence[tuple[str, int]]) -> dict[str, int]:
    """What --size says, by name."""
    found: dict[str, int] = {}
    for name, value in given:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--size {name} has two values, {found[name]} and {value}: give one")
    return found
