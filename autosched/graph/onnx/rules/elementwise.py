"""Rules of elementwise operators and of random numbers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from autosched.errors import GraphError
from autosched.graph.onnx.files import type_label, type_named
from autosched.graph.onnx.held_types import BITS, HELD_IN, POWERS, WITHOUT_NAN, float_format
from autosched.graph.onnx.random_numbers import normal, uniform
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
    """Dropout is the identity in inference. In training it draws which elements stay while importing."""
    x, training, ratio = site.input(0), site.array(2), site.array(1)
    seed = site.attribute("seed")
    site.ignore("ratio")  # of training before opset 12, which files of inference do not have
    share = 0.5 if ratio is None else float(ratio.item())
    shape = site.shape(x)
    if training is None or not training.item() or share == 0:
        return (x, site.constant(np.broadcast_to(np.True_, shape))) if site.is_output_used(1) else x
    refuse(not 0 < share < 1, f"the ratio {share}")
    kept = uniform(*site.builder.next_draw(seed, site.origin), shape) >= share
    return site.emit("mul", x, site.constant(kept / (1 - share), site.dtype(x))), site.constant(kept)


@rule("RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike")
def random_numbers(site: Site) -> Results:
    """Constants: they are drawn while importing."""
    like = site.input(0) if site.operator.endswith("Like") else None
    shape = tuple(site.attribute("shape")) if like is None else site.shape(like)
    dtype = random_type(site, TensorProto.FLOAT if like is None else None, like)
    refuse(not DTYPES[dtype].is_float, f"random numbers of the type {dtype}")
    draw = site.builder.next_draw(site.attribute("seed"), site.origin)
    if site.operator.startswith("RandomNormal"):
        numbers = normal(*draw, shape) * site.attribute("scale", 1.0) + site.attribute("mean", 0.0)
    else:
        low, high = site.attribute("low", 0.0), site.attribute("high", 1.0)
        numbers = uniform(*draw, shape) * (high - low) + low
    return site.constant(numbers, dtype)


def random_type(site: Site, default: int | None, like: str | None) -> str:
    """Return the type that the attribute `dtype` names, or that of `like`."""
    number = site.attribute("dtype", default)
    if number is None and like is not None:
        return site.dtype(like)
    dtype = type_named(number)
    if dtype is None:
        raise GraphError(f"numbers of {type_label(number)} are not supported")
    return dtype


@rule("Bernoulli")
def bernoulli(site: Site) -> Results:
    """1 with the probability x: where a number that is drawn while importing is less."""
    x = site.input(0)
    kind = DTYPES[site.dtype(x)].computes_in
    drawn = uniform(*site.builder.next_draw(site.attribute("seed"), site.origin), site.shape(x))
    if kind != "float64":
        drawn = np.floor(drawn * 2.0**24) * 2.0**-24  # none is rounded up to 1
    is_one = site.emit("less", site.constant(drawn, kind), site.cast(x, kind))
    return site.cast(is_one, random_type(site, None, x))


@rule("Multinomial")
def multinomial(site: Site) -> Results:
    """Return how many running sums of the probabilities are at most a number that is drawn while importing."""
    x, count = site.input(0), site.attribute("sample_size", 1)
    dtype = random_type(site, TensorProto.INT32, None)
    refuse(site.rank(x) != 2, f"a draw from probabilities of the shape {list(site.shape(x))}")
    rows, classes = site.sizes(x, 2)
    x = site.cast(x, DTYPES[site.dtype(x)].computes_in)
    largest = site.emit("reduce_max", x, axes=(1,), keepdims=True)
    sums = site.emit("cumsum", site.emit("exp", site.emit("sub", x, largest)), axis=1)
    drawn = uniform(*site.builder.next_draw(site.attribute("seed"), site.origin), (rows, count))
    limit = site.emit("mul", site.constant(drawn, site.dtype(x)), site.part(sums, 1, classes - 1, classes))
    is_below = site.emit("less_equal", site.reshape(sums, (rows, 1, classes)), site.reshape(limit, (rows, count, 1)))
    number = site.emit("reduce_sum", site.cast(is_below, "int64"), axes=(2,), keepdims=False)
    return site.cast(site.emit("minimum", number, site.constant(classes - 1, "int64")), dtype)


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
        wide = site.cast(x, "float32")
        made = site.emit("round_to_power", wide, dtype=dtype, mode=round_mode, saturate=saturate)
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


@rule("Shrink")
def shrink(site: Site) -> Results:
    """Move elements further than `lambd` from 0 by `bias` towards it; others are 0. Integers are computed as floats."""
    given = site.input(0)
    x = given if site.is_float(given) else site.cast(given, "float64")
    bias, limit = site.attribute("bias", 0.0), site.attribute("lambd", 0.5)
    step, low, high, zero = (site.constant(number, site.dtype(x)) for number in (bias, -limit, limit, 0))
    above = site.emit("where", site.emit("greater", x, high), site.emit("sub", x, step), zero)
    moved = site.emit("where", site.emit("less", x, low), site.emit("add", x, step), above)
    return site.cast(moved, site.dtype(given))


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
