"""What passes know of operators beside what they compute: which broadcast, which may be turned around."""

from __future__ import annotations

# One operand, and each element of the result of the element at the same place alone.
UNARY = frozenset(
    {
        "neg",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "sigmoid",
        "relu",
        "floor",
        "ceil",
        "round",
        "sign",
        "logical_not",
        "bitwise_not",
        "isnan",
        "isinf",
        "identity",
        "silu",
        "gelu",
        "softplus",
        "softsign",
        "mish",
        "hard_sigmoid",
        "hard_swish",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "thresholded_relu",
        "clip",
        "cast",
    }
)
# The result does not depend on the order of the two operands.
COMMUTATIVE = frozenset(
    {
        "add",
        "mul",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    }
)
# Operands are stretched to each other by NumPy's rules.
BROADCASTING = COMMUTATIVE | frozenset(
    {
        "sub",
        "div",
        "pow",
        "mod",
        "floor_div",
        "maximum",
        "minimum",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "shift_left",
        "shift_right",
        "where",
    }
)
