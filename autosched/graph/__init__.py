"""Networks: graphs of operators, from importers to one program.

graph        values, nodes, constants
operators/   what nodes compute: one function each
interpret    the reference: node by node, in float64
order        the order of steps, for few bytes at once
liveness     from when to when values are needed, and which share their bytes
memory       one arena for all of them; placement, placement_search
"""
