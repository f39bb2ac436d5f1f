"""Networks as graphs of operators, from importers to groups of nodes and a memory plan.

    graph        values, nodes, constants; `verify` checks that a graph is well-formed
    operators/   what nodes compute: one function each
    interpret    the reference: node by node, in float64
    saved        graphs as files
    onnx/        import of ONNX files
    torch/       import of torch modules and of the graphs of torch.compile
    passes/      transformations of graphs before the partition into kernels, in order
    group_description  a group as data
    fusion/      the partition of nodes into groups, one kernel each
    memory/      order of steps, liveness, arena planning, storage of values

`autosched.planning` compiles the groups, `autosched.executor` runs them.
"""
