"""Networks: graphs of operators, from importers to one program.

    graph        values, nodes, constants; `verify` tells whether a graph is one
    operators/   what nodes compute: one function each
    interpret    the reference: node by node, in float64
    saved        graphs as files
    onnx/        ONNX files as graphs
    torch/       torch modules, and what torch.compile hands over, as graphs
    passes/      what is done to a graph before it is cut into kernels, in order
    group_description  what one kernel computes, as data
    fusion/      which nodes one kernel computes
    memory/      in which order kernels run, from when to when values are needed, and where each is stored

`autosched.planning` makes kernels of the groups, `autosched.executor` runs them.
"""
