"""The networks by name, with random weights, in their published sizes and in reduced ones.

`build` makes one in inference: its weights seeded, batch norms near identity, so that values neither vanish nor grow
beyond bounds with depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from experiments.networks.convolutional import (
    EFFICIENTNET,
    Dcgan,
    InvertedStage,
    MobileNet,
    ResNet3d18,
    ResNet18,
    ResNet50,
    UNet,
)
from experiments.networks.sequences import DecoderPrefill, DecoderStep, Tagger
from experiments.networks.transformers import Bert, UNetAttention, VisionTransformer


@dataclass(frozen=True)
class Network:
    """`full`: sizes beside those of the class; `reduced`: those that differ in the reduced network."""

    make: Callable[..., Any]
    reduced: Mapping[str, Any]
    full: Mapping[str, Any] = field(default_factory=dict)


_DECODER: Mapping[str, Any] = {
    "layers": 1, "d": 24, "heads": 4, "kv": 2, "inner": 32, "words": 23, "tokens": 5, "room": 7,
}  # fmt: skip
_SQUEEZED: Mapping[str, Any] = {"stages": EFFICIENTNET, "act": nn.SiLU, "squeeze": True}
_INT4: Mapping[str, Any] = {"group": 32}
NETWORKS: Mapping[str, Network] = {
    "resnet50": Network(ResNet50, {"blocks": (1, 1), "width": 4, "size": 33, "classes": 5}),
    "resnet18": Network(ResNet18, {"width": 4, "size": 33, "stages": 2, "classes": 5}),
    "mobilenet_v2": Network(
        MobileNet, {"stages": (InvertedStage(2, 5, 2, 2),), "ends": (4, 7), "size": 17, "classes": 5}
    ),
    "r3d_18": Network(ResNet3d18, {"width": 3, "clip": (3, 13), "stages": 2, "classes": 5}),
    "dcgan": Network(Dcgan, {"noise": 5, "width": 3, "doublings": 1}),
    "bert_base": Network(Bert, {"layers": 1, "d": 24, "heads": 3, "inner": 40, "words": 29, "tokens": 13}),
    "efficientnet_b0": Network(
        MobileNet, {"stages": (InvertedStage(2, 4, 1, 1, 5),), "ends": (4, 7), "size": 17, "classes": 5}, _SQUEEZED
    ),
    "vit_s": Network(VisionTransformer, {"layers": 1, "d": 24, "heads": 3, "size": 15, "patch": 5, "classes": 5}),
    "unet": Network(UNet, {"width": 3, "depth": 1, "size": 10}),
    "unet_attention": Network(UNetAttention, {"d": 8, "step": 5, "text": (3, 7), "heads": 2, "size": 6, "groups": 4}),
    "llama_prefill": Network(DecoderPrefill, _DECODER),
    "llama_step": Network(DecoderStep, _DECODER),
    "llama_prefill_int4": Network(DecoderPrefill, {**_DECODER, "group": 8}, _INT4),
    "llama_step_int4": Network(DecoderStep, {**_DECODER, "group": 8}, _INT4),
    "lstm_tagger": Network(Tagger, {"words": 11, "d": 5, "hidden": 7, "tokens": 3, "tags": 4}),
}


def build(name: str, batch: int = 1, *, reduced: bool = False, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network in inference and inputs for it, the same for the same arguments."""
    network = NETWORKS[name]
    torch.manual_seed(seed)
    module = randomise(network.make(**{**network.full, **(network.reduced if reduced else {})}).eval())
    return module, module.example(batch)


def randomise(module: nn.Module) -> nn.Module:
    """Give convolutions random weights, and batch norms statistics as after training; return the module."""
    for part in module.requires_grad_(False).modules():
        if isinstance(part, (nn.Conv2d, nn.Conv3d)):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        elif isinstance(part, nn.ConvTranspose2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(part, (nn.BatchNorm2d, nn.BatchNorm3d)):
            for tensor, mean in (
                (part.running_mean, 0.0),
                (part.running_var, 1.0),
                (part.weight, 1.0),
                (part.bias, 0.0),
            ):
                tensor.uniform_(mean - 0.1, mean + 0.1)
    return module
