"""Distribution of single operators: a family, its numbers, what is fused to it, and whether weights are constant.

FAMILIES has the operators of `autosched.te.operators.registry` and those of networks that differ from them: `linear`
with weights [N, K], `conv3d` with channels first. Pair n of a seed is of family n in a random order of all, so that
each comes as often. Sizes are log-uniform over the family's ranges; one of two is then left as it is, one of four
rounded to a multiple of 16, one of four to the next prime. The other numbers are uniform over CHOICES. Half of the
products and convolutions have constant weights, and half an epilogue of EPILOGUES. What the roofline of RATE and
BANDWIDTH does not put between SHORTEST_S and LONGEST_S is drawn again. All is float32.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autosched import te
from autosched.errors import AutoschedError, UsageError
from autosched.graph.operators import activations
from autosched.graph.operators.convolutions import conv
from autosched.graph.operators.products import linear
from autosched.kernel.roofline import compulsory_bytes
from autosched.te import ComputeDAG, Tensor
from autosched.te.operators.registry import WORKLOADS, outputs_of

RATE, BANDWIDTH = 1e11, 1e10  # operations and bytes a second of the roofline by which sizes are drawn
SHORTEST_S, LONGEST_S = 2e-5, 3e-2
CHANNELS = {"CI": (3, 512), "CO": (8, 512), "C": (8, 1024)}
IMAGES = {"N": (1, 4), "H": (5, 160), "W": (5, 160), **CHANNELS}
VOLUMES = {"N": (1, 2), "D": (2, 20), "H": (5, 60), "W": (5, 60), **CHANNELS}
MATRICES = {"M": (4, 2048), "N": (16, 4096), "K": (16, 4096)}
BATCHES = {"B": (1, 48), "M": (8, 512), "N": (8, 512), "K": (8, 512)}
ROWS = {"M": (4, 4096), "N": (8, 4096)}
SCORES = {"N": (1, 4), "seq": (17, 300), "heads": (2, 16), "dim": (24, 128)}
HEADS = {"N": (1, 2), "heads": (2, 16), "queries": (17, 800), "dim": (24, 128)}
# Numbers that are no sizes, and words.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "k": (1, 3, 3, 5, 7), "stride": (1, 1, 2), "dilation": (1, 1, 2), "groups": (1, 2, 4, 8),
    "layout": ("NHWC", "NCHW"), "keys": (0,), "causal": (0, 1), "m": (2, 4), "count_include_pad": (0, 1),
}  # fmt: skip
EPILOGUES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": activations.relu,
    "gelu": activations.gelu,
    "silu": activations.silu,
    "residual": lambda x: _added(x, te.placeholder(x.shape, x.dtype, name="residual")),
}


def _added(x: Tensor, y: Tensor) -> Tensor:
    result: Tensor = te.compute(x.shape, lambda *i: x[i] + y[i], name="sum")
    return result


@dataclass(frozen=True)
class Family:
    """An operator as a function of its numbers. `sizes`: least and greatest. `choices`: beside those of all families.

    `has_weights`: its inputs after the first may be constant, and an epilogue may follow.
    """

    build: Callable[..., Tensor | tuple[Tensor, ...]]
    sizes: Mapping[str, tuple[int, int]]
    choices: Mapping[str, tuple[Any, ...]]
    has_weights: bool


def _inputs(shapes: Mapping[str, tuple[int, ...]]) -> list[Tensor]:
    return [te.placeholder(shape, "float32", name=name) for name, shape in shapes.items()]


def _linear(M: int, N: int, K: int) -> Tensor:
    x, weights, bias = _inputs({"X": (M, K), "W": (N, K), "bias": (N,)})
    result: Tensor = linear(x, weights, bias)
    return result


def _conv3d(**numbers: int) -> Tensor:
    n, d, h, w, ci, co, k, stride, pad = (numbers[a] for a in ("N", "D", "H", "W", "CI", "CO", "k", "stride", "pad"))
    shapes = {"X": (n, ci, d, h, w), "W": (co, ci, k, k, k), "bias": (co,)}
    x, weights, bias = _inputs(shapes)
    result: Tensor = conv(x, weights, bias, strides=(stride,) * 3, pads=((pad, pad),) * 3)
    return result


def _builtin(
    name: str, sizes: Mapping[str, tuple[int, int]], has_weights: bool = False, **choices: tuple[Any, ...]
) -> Family:
    args = WORKLOADS[name].args

    def build(**numbers: Any) -> Tensor | tuple[Tensor, ...]:
        return outputs_of(name, numbers, "float32")

    found = {a: r for a, r in sizes.items() if a in args}
    others = {**CHOICES, **choices}
    return Family(build, found, {a: others[a] for a in args if a in others}, has_weights)


_CONVOLUTIONS = {
    "c1d": {"N": (1, 4), "L": (16, 2000), **CHANNELS}, "c2d": IMAGES, "c3d": VOLUMES, "grp": IMAGES, "dil": IMAGES,
    "dep": IMAGES, "cbr": IMAGES, "conv2d": IMAGES, "depthwise": IMAGES, "winograd": IMAGES,
}  # fmt: skip
_OF_ROWS = ("sfm", "softmax", "layer_norm", "rms_norm", "relu", "gelu", "add", "elementwise", "transpose")
_OF_IMAGES = ("max_pool2d", "avg_pool2d", "global_max_pool2d", "global_avg_pool2d", "batch_norm")
FAMILIES: Mapping[str, Family] = {
    **{name: _builtin(name, sizes, True) for name, sizes in _CONVOLUTIONS.items()},
    "t2d": _builtin("t2d", {**IMAGES, "H": (4, 64), "W": (4, 64)}, True, k=(2, 4), stride=(2,)),
    "cap": _builtin("cap", {"N": (1, 2), "H": (5, 20), "W": (5, 20), "CI": (4, 40), "CO": (4, 40)}, True, k=(1, 3)),
    "conv3d": Family(_conv3d, VOLUMES | {"C": (1, 1)}, {a: CHOICES[a] for a in ("k", "stride")}, True),
    "linear": Family(_linear, MATRICES, {}, True),
    **{name: _builtin(name, MATRICES, True) for name in ("matmul", "dense")},
    **{name: _builtin(name, BATCHES, True) for name in ("batch_matmul", "gmm")},
    **{name: _builtin(name, ROWS) for name in _OF_ROWS},
    **{name: _builtin(name, IMAGES, k=(2, 3, 5)) for name in _OF_IMAGES},
    "nrm": _builtin("nrm", {"B": (1, 8), "M": (16, 2048), "N": (16, 2048)}),
    "tbg": _builtin("tbg", SCORES),
    "tbs": _builtin("tbs", SCORES),
    "attention": _builtin("attention", HEADS),
}


@dataclass(frozen=True)
class Operator:
    """An operator of a family with its numbers; `epilogue` is a name of EPILOGUES, "" for none."""

    family: str
    numbers: Mapping[str, Any]
    epilogue: str = ""
    has_constant_weights: bool = False

    @property
    def name(self) -> str:
        """As `parse` reads it."""
        words = [f"{self.family}+{self.epilogue}".rstrip("+"), *(f"{a}={n}" for a, n in self.numbers.items())]
        return " ".join([*words, *["weights"] * self.has_constant_weights])

    @cached_property
    def dag(self) -> ComputeDAG:
        """Raises AutoschedError for numbers that do not fit each other."""
        result = FAMILIES[self.family].build(**self.numbers)
        if self.epilogue:
            assert isinstance(result, Tensor)
            result = EPILOGUES[self.epilogue](result)
        return ComputeDAG(result if isinstance(result, tuple) else (result,))

    @property
    def weights(self) -> tuple[str, ...]:
        named = [t.name for t in self.dag.inputs[1:] if t.name != "residual"]
        return tuple(named) if self.has_constant_weights else ()

    @property
    def least_s(self) -> float:
        """Seconds of the roofline by which sizes are drawn."""
        return self.dag.flops / RATE + compulsory_bytes(self.dag) / BANDWIDTH


def draw(seed: int, n: int) -> Operator:
    """Pair `n` of a seed, always the same one."""
    families = list(FAMILIES)
    random.Random(seed).shuffle(families)
    rng, family = random.Random(f"{seed}-{n}"), families[n % len(families)]
    while True:
        found = _drawn(family, rng)
        try:
            if SHORTEST_S <= found.least_s <= LONGEST_S:
                return found
        except AutoschedError:  # a window that does not fit into its image
            continue


def _drawn(name: str, rng: random.Random) -> Operator:
    family = FAMILIES[name]
    numbers: dict[str, Any] = {a: _size(low, high, rng) for a, (low, high) in family.sizes.items()}
    numbers |= {a: rng.choice(values) for a, values in family.choices.items()}
    if "W" in numbers and rng.random() < 0.75:
        numbers["W"] = numbers["H"]
    if "k" in numbers:
        numbers["pad"] = rng.choice((numbers["k"] // 2, numbers["k"] // 2, 0))
    if groups := numbers.get("groups"):
        numbers |= {a: -(-numbers[a] // groups) * groups for a in ("CI", "CO")}
    if name in WORKLOADS:
        numbers = {a: numbers.get(a, d) for a, d in zip(WORKLOADS[name].args, WORKLOADS[name].defaults, strict=True)}
    else:
        numbers.pop("C", None)
    fused = family.has_weights and rng.random() < 0.5
    return Operator(
        name, numbers, rng.choice(list(EPILOGUES)) if fused else "", family.has_weights and rng.random() < 0.5
    )


def _size(low: int, high: int, rng: random.Random) -> int:
    size, rounding = round(math.exp(rng.uniform(math.log(low), math.log(high)))), rng.random()
    if rounding < 0.25 and size >= 16:
        return size // 16 * 16
    while rounding >= 0.75 and size > 1 and any(size % d == 0 for d in range(2, math.isqrt(size) + 1)):
        size += 1
    return size


def parse(text: str) -> Operator:
    """'linear+gelu M=1500 N=1536 K=384 weights': an operator by its name. Raises UsageError for what is none."""
    first, *words = text.split()
    family, _, epilogue = first.partition("+")
    if family not in FAMILIES or (epilogue and epilogue not in EPILOGUES):
        expected = f"the families are {', '.join(FAMILIES)}, the epilogues {', '.join(EPILOGUES)}"
        raise UsageError(f"there is no operator {first}; {expected}")
    pairs = [word.split("=") for word in words if word != "weights"]
    if not all(len(pair) == 2 for pair in pairs):
        raise UsageError(f"numbers are written as in linear M=64 N=64 K=64, got {text!r}")
    numbers = {a: int(n) if n.isdigit() else n for a, n in pairs}
    found = Operator(family, numbers, epilogue, "weights" in words)
    try:
        _ = found.dag
    except (TypeError, AutoschedError) as error:
        raise UsageError(f"{text}: {error}") from None
    return found
