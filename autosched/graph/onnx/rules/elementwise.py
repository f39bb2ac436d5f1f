"""Rules of elementwise operators."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.held_types import BITS, HELD_IN, POWERS, WITHOUT_NAN, float_format
from autosched.graph.onnx.site import Results, Rule, Site, refuse, rule
from autosched.ir.dtype import DTYPES

# Ours by ONNX's, where inputs are the same and there are no attributes.
SAME = {
    **{"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "PRelu": "prelu", "Where": "where"},
    **{"Equal": "equal", "Less": "less", "LessOrEqual": "less_equal"},
    **{"Greater": "greater", "GreaterOrEqual": "greater_equal"},
    **{"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not"},
    **{"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"},
    "BitwiseNot": "bitwise_not",
    **{"Neg": "neg", "Abs": "abs", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal"},
    **{"Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan"},
    **{"Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh"},
    **{"Erf": "erf", "Sigmoid": "sigmoid", "Relu": "relu", "Floor": "floor", "Ceil": "ceil", "Round": "round"},
    **{"Sign": "sign", "IsNaN": "isnan", "Softplus": "softplus", "Softsign": "softsign", "Mish": "mish"},
    "HardSwish": "hard_swish",
}
# Ours, and its attributes with the defaults that ONNX has for them.
WITH_NUMBERS: dict[str, tuple[str, dict[str, float | str]]] = {
    "Elu": ("elu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Celu": ("celu", {"alpha": 1.0}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Gelu": ("gelu", {"approximate": "none"}),
}


def same(ours: str) -> Rule:
    return lambda site: site.emit(ours, *site.all_inputs())


def with_numbers(ours: str, defaults: dict[str, float | str]) -> Rule:
    def emit(site: Site) -> Results:
        return site.emit(ours, site.input(0), **{name: site.attribute(name, d) for name, d in defaults.items()})

    return emit


for _name, _ours in SAME.items():
    rule(_name)(same(_ours))
for _name, (_ours, _defaults) in WITH_NUMBERS.items():
    rule(_name)(with_numbers(_ours, _defaults))


@rule("Identity")
def identity(site: Site) -> Results:
    return site.input(0)


@rule("Dropout")
def dropout(site: Site) -> Results:
    """Dropout is the identity in inference."""
    site.ignore("seed", "ratio")
    training = site.array(2)
    ratio = site.array(1) if training is not None and training.item() else None
    refuse(training is not None and bool(training.item()) and (ratio is None or ratio.item() != 0), "training mode")
    x = site.input(0)
    return (x, site.constant(np.broadcast_to(np.True_, site.shape(x)))) if site.is_output_used(1) else x


@rule("Pow")
def power(site: Site) -> Results:
    """The result is of the base's type."""
    x, exponent = site.input(0), site.input(1)
    kind = site.dtype(x)
    if site.is_float(exponent) and not site.is_float(x):
        return site.cast(site.emit("pow", site.cast(x, site.dtype(exponent)), exponent), kind)
    return site.emit("pow", x, site.cast(exponent, kind))


@rule("Mod")
def modulo(site: Site) -> Results:
    return site.emit("mod", site.input(0), site.input(1), fmod=bool(site.attribute("fmod", 0)))


@rule("BitShift")
def shift(site: Site) -> Results:
    direction = site.attribute("direction").lower()
    return site.emit(f"shift_{direction}", site.input(0), site.input(1))


@rule("Max", "Min")
def extremum(site: Site) -> Results:
    given = site.all_inputs()
    return given[0] if len(given) == 1 else site.emit("maximum" if site.operator == "Max" else "minimum", *given)


@rule("Sum", "Mean")
def total(site: Site) -> Results:
    given = site.all_inputs()
    result = given[0]
    for name in given[1:]:
        result = site.emit("add", result, name)
    if site.operator == "Mean" and len(given) > 1:
        result = site.emit("div", result, site.constant(len(given), site.dtype(result)))
    return result


@rule("IsInf")
def is_infinite(site: Site) -> Results:
    positive, negative = (bool(site.attribute(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    return site.emit("isinf", site.input(0), positive=positive, negative=negative)


@rule("Cast", "CastLike")
def cast(site: Site) -> Results:
    how = {"saturate": bool(site.attribute("saturate", 1)), "round_mode": site.attribute("round_mode", "up")}
    name = site.type_of(site.input(1)) if site.operator == "CastLike" else type_named(site.attribute("to"))
    if name is None:
        raise GraphError(f"a cast to {type_label(site.attribute('to'))} is not supported")
    return cast_to(site, site.input(0), name, **how)


def cast_to(site: Site, x: str, name: str, saturate: bool = True, round_mode: str = "up") -> str:
    """Emit the cast of `x` to a type of ours or to one that is held in one.

    `saturate`: floats of 8 bits and less are at most the largest number of their type. `round_mode`: to powers of two.
    """
    dtype = HELD_IN.get(name, name)
    if name in BITS:
        whole = site.cast(x, "int32") if site.is_float(x) else x
        made = site.emit("low_bits", site.cast(whole, dtype), bits=BITS[name])
    elif name == POWERS:
        powers = site.emit("round_to_power", site.cast(x, "float32"), mode=round_mode, saturate=saturate)
        made = site.cast(powers, dtype)
    elif name in HELD_IN:
        fraction_bits, smallest_normal, largest = float_format(name)
        wide = site.cast(x, "float32")
        if name == WITHOUT_NAN:
            wide, saturate = site.emit("where", site.emit("isnan", wide), site.constant(0, "float32"), wide), True
        format_ = {"fraction_bits": fraction_bits, "smallest_normal": smallest_normal, "largest": largest}
        made = site.cast(site.emit("round_to_float", wide, **format_, saturate=saturate), dtype)
    elif DTYPES[dtype].is_float and DTYPES[dtype].bits == 8 and saturate and site.dtype(x) != dtype:
        largest = DTYPES[dtype].largest
        wide = x if site.is_float(x) else site.cast(x, "float32")
        made = site.cast(site.emit("clip", wide, low=-largest, high=largest), dtype)
    else:
        made = site.cast(x, dtype)
    return site.typed(made, name)


@rule("BitCast")
def bitcast(site: Site) -> Results:
    x, to = site.input(0), site.attribute("to")
    name = type_named(to)
    if name is None or name in HELD_IN or site.type_of(x) in HELD_IN:
        raise GraphError(f"a bitcast of {site.type_of(x)} to {type_label(to)} is not supported")
    return site.emit("bitcast", x, dtype=name)


@rule("Clip")
def clip(site: Site) -> Results:
    """Non-constant bounds become minimum and maximum."""
    x = site.input(0)
    if site.opset < 11:
        return site.emit("clip", x, low=site.attribute("min"), high=site.attribute("max"))
    bounds = [site.optional(n) for n in (1, 2)]
    if all(name is None or name in site.builder.constants for name in bounds):
        low, high = (None if (limit := site.array(n)) is None else limit.item() for n in (1, 2))
        return x if low is None and high is None else site.emit("clip", x, low=low, high=high)
    result = x
    for name, operator in zip(bounds, ("maximum", "minimum"), strict=True):
        if name is not None:
            result = site.emit(operator, result, site.reshape(name, ()))
    return result


@rule("Swish")
def swish(site: Site) -> Results:
    x, alpha = site.input(0), site.attribute("alpha", 1.0)
    if alpha == 1.0:
        return site.emit("silu", x)
    return site.emit("mul", x, site.emit("sigmoid", site.emit("mul", x, site.constant(alpha, site.dtype(x)))))
