"""Networks: graphs of operators, from importers to one program.

    graph        values, nodes, constants; `verify` tells whether a graph is one
    operators/   what nodes compute: one function each
    interpret    the reference: node by node, in float64
    saved        graphs as files
    onnx/        ONNX files as graphs
    torch/       torch modules, and what torch.compile hands over, as graphs
    passes/      what is done to a graph before it is cut into kernels, in order
    description  what one kernel computes, as data
    node_facts   what a node is to a kernel: whether it moves, maps or mixes elements
    fusion_cost  bytes that fusing saves, against arithmetic that it repeats
    partition    which nodes one kernel computes
    order        in which order kernels run, so that few bytes are alive at once
    liveness     from when to when values are needed, and which share bytes
    memory       where each lies in one arena

`autosched.network` makes kernels of the parts and links them.
"""
