"""Graphs from PyTorch: modules by torch.export, and torch.fx graphs as torch.compile hands them to a backend.

load      load_torch, load_fx; which nodes of an fx graph can be in a Graph
program   programs of torch.export, and the files that they are saved in
builder   makes values, nodes and constants
rules/    one function for each ATen operator: which operators of `graph.operators` it is

Only this package and what stands on it import torch.
"""

from importlib.util import find_spec

from autosched.errors import UsageError

if find_spec("torch") is None:
    raise UsageError('PyTorch modules need the package torch: pip install "autosched[torch]"')
