"""Networks: graphs of operators, from importers to one program.

graph        values, nodes, constants
operators/   what nodes compute: one function each
interpret    the reference: node by node, in float64
"""
