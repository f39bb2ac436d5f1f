"""Rules of ONNX Runtime's fused operators in models that it has saved: convolutions and products with activations."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.errors import GraphError
from autosched.graph.onnx.rules.convolutions import conv
from autosched.graph.onnx.rules.elementwise import SAME, WITH_NUMBERS
from autosched.graph.onnx.rules.microsoft import DOMAIN
from autosched.graph.onnx.rules.products import gemm
from autosched.graph.onnx.site import Results, Site, rule


@rule("FusedConv", domain=DOMAIN)
def fused_conv(site: Site) -> Results:
    """The activation of the convolution plus the fourth input."""
    y, added = conv(site), site.optional(3)
    assert isinstance(y, str)
    y = y if added is None else site.emit("add", y, added)
    return activated(site, y, site.attribute("activation"), site.attribute("activation_params", ()))


@rule("FusedGemm", domain=DOMAIN)
def fused_gemm(site: Site) -> Results:
    y = gemm(site)
    assert isinstance(y, str)
    numbers = [site.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return activated(site, y, site.attribute("activation"), [n for n in numbers if n is not None])


def activated(site: Site, x: str, activation: str | None, numbers: Sequence[float]) -> str:
    """`activation` is one of the standard's operators; `numbers` are its attributes in their order."""
    if not activation:
        return x
    if activation == "Clip" and len(numbers) == 2:
        return site.emit("clip", x, low=numbers[0], high=numbers[1])
    if activation in SAME and not numbers:
        return site.emit(SAME[activation], x)
    if activation not in WITH_NUMBERS:
        raise GraphError(f"the activation {activation} with {len(numbers)} numbers is not supported")
    ours, defaults = WITH_NUMBERS[activation]
    return site.emit(ours, x, **{**defaults, **dict(zip(defaults, numbers, strict=False))})
