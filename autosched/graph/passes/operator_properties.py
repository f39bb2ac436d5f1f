"""Operator properties for passes: which operators are unary, commutative or broadcasting."""

from __future__ import annotations

# Operators of one operand that compute each element from the element at the same index.
UNARY = frozenset(
    {
        "neg",
        "abs",
        "exp",
        "expm1",
        "log",
        "log1p",
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
        "round_to_power",
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
# Operators whose operands broadcast by NumPy's rules.
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
