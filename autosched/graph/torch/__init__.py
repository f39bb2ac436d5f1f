"""PyTorch importer: modules by torch.export, and the torch.fx graphs that torch.compile passes to a backend.

load       load_torch, load_fx; whether a node of an fx graph can be imported
program    programs of torch.export, and their files
builder    the graph under construction: values, nodes and constants
rules/     the operators of `graph.operators` for each ATen operator, one function each
decompose  decompositions of composite ATen operators
sizes      fx graphs with symbolic sizes, specialised to numbers

Only this package and those that depend on it import torch.
"""

from importlib.util import find_spec

from autosched.errors import UsageError

if find_spec("torch") is None:
    raise UsageError('PyTorch modules need the package torch: pip install "autosched[torch]"')
