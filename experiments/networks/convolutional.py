"""Networks of convolutions. Sizes are by default those of the publication that a docstring names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Callable[[], Any]
CONVS = {2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def conv_norm(
    ci: int, co: int, size: int = 3, stride: int = 1, *, groups: int = 1, act: Activation | None = None, dims: int = 2
) -> nn.Sequential:
    """A convolution that keeps the picture's size but for its stride, a batch norm, an activation."""
    conv = CONVS[dims](ci, co, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, NORMS[dims](co), *([] if act is None else [act()]))


def picture(batch: int, size: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)


class Bottleneck(nn.Module):
    def __init__(self, ci: int, mid: int, stride: int) -> None:
        super().__init__()
        narrow = conv_norm(ci, mid, 1, act=nn.ReLU)
        self.body = nn.Sequential(narrow, conv_norm(mid, mid, 3, stride, act=nn.ReLU), conv_norm(mid, 4 * mid, 1))
        self.down = nn.Identity() if stride == 1 and ci == 4 * mid else conv_norm(ci, 4 * mid, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.down(x))


class ResNet50(nn.Module):
    """He et al. 2016, with the stride in the convolution of 3x3 as in torchvision (v1.5)."""

    def __init__(
        self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, size: int = 224, classes: int = 1000
    ) -> None:
        super().__init__()
        self.size, self.stem = size, conv_norm(3, width, 7, 2, act=nn.ReLU)
        layers: list[nn.Module] = []
        ci = width
        for n, count in enumerate(blocks):
            mid = width * 2**n
            for k in range(count):
                layers.append(Bottleneck(ci, mid, 2 if n > 0 and k == 0 else 1))
                ci = 4 * mid
        self.body, self.head = nn.Sequential(*layers), nn.Linear(ci, classes)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return picture(batch, self.size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(functional.max_pool2d(self.stem(x), 3, 2, 1))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class BasicBlock(nn.Module):
    def __init__(self, ci: int, co: int, stride: int, dims: int) -> None:
        super().__init__()
        first = conv_norm(ci, co, 3, stride, act=nn.ReLU, dims=dims)
        self.body = nn.Sequential(first, conv_norm(co, co, dims=dims))
        self.down = nn.Identity() if stride == 1 and ci == co else conv_norm(ci, co, 1, stride, dims=dims)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.down(x))


def basic_stages(width: int, stages: int, dims: int) -> nn.Sequential:
    """Two basic blocks a stage; each stage after the first has twice the width and half the extents."""
    blocks: list[nn.Module] = []
    ci = width
    for n in range(stages):
        co = width * 2**n
        blocks += [BasicBlock(ci, co, 1 if n == 0 else 2, dims), BasicBlock(co, co, 1, dims)]
        ci = co
    return nn.Sequential(*blocks)


class ResNet18(nn.Module):
    """He et al. 2016."""

    def __init__(self, width: int = 64, size: int = 224, stages: int = 4, classes: int = 1000) -> None:
        super().__init__()
        self.size, self.stem = size, conv_norm(3, width, 7, 2, act=nn.ReLU)
        self.body, self.head = basic_stages(width, stages, 2), nn.Linear(width * 2 ** (stages - 1), classes)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return picture(batch, self.size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(functional.max_pool2d(self.stem(x), 3, 2, 1))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class ResNet3d18(nn.Module):
    """Tran et al. 2018 (r3d_18 of torchvision): 16 frames of 112 x 112."""

    def __init__(self, width: int = 64, clip: tuple[int, int] = (16, 112), stages: int = 4, classes: int = 400) -> None:
        super().__init__()
        self.clip = clip
        stem = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm3d(width), nn.ReLU())
        self.body, self.head = basic_stages(width, stages, 3), nn.Linear(width * 2 ** (stages - 1), classes)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        frames, size = self.clip
        return (torch.randn(batch, 3, frames, size, size),)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.adaptive_avg_pool3d(self.body(self.stem(x)), 1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.excite(functional.silu(self.squeeze(mean))))


@dataclass(frozen=True)
class InvertedStage:
    """Inverted residual blocks of one width: how often the first widens, results, how many, stride, filter."""

    widen: int
    channels: int
    count: int
    stride: int
    size: int = 3


class InvertedResidual(nn.Module):
    def __init__(self, ci: int, stage: InvertedStage, stride: int, act: Activation, squeeze: bool) -> None:
        super().__init__()
        mid, co = ci * stage.widen, stage.channels
        parts = [conv_norm(ci, mid, 1, act=act)] if stage.widen != 1 else []
        parts += [conv_norm(mid, mid, stage.size, stride, groups=mid, act=act)]
        parts += [SqueezeExcite(mid, max(1, ci // 4))] if squeeze else []
        self.body, self.adds = nn.Sequential(*parts, conv_norm(mid, co, 1)), stride == 1 and ci == co

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


MOBILENET = tuple(
    InvertedStage(*row)
    for row in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
)
EFFICIENTNET = tuple(
    InvertedStage(*row)
    for row in (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
)


class MobileNet(nn.Module):
    """MobileNet-V2 (Sandler et al. 2018); with SiLU and `squeeze` and other stages EfficientNet (Tan and Le 2019)."""

    def __init__(
        self,
        stages: Sequence[InvertedStage] = MOBILENET,
        act: Activation = nn.ReLU6,
        squeeze: bool = False,
        ends: tuple[int, int] = (32, 1280),
        size: int = 224,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.size = size
        ci, last = ends
        layers: list[nn.Module] = [conv_norm(3, ci, 3, 2, act=act)]
        for stage in stages:
            for n in range(stage.count):
                layers.append(InvertedResidual(ci, stage, stage.stride if n == 0 else 1, act, squeeze))
                ci = stage.channels
        self.body = nn.Sequential(*layers, conv_norm(ci, last, 1, act=act))
        self.head = nn.Linear(last, classes)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return picture(batch, self.size)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.adaptive_avg_pool2d(self.body(x), 1).flatten(1))


class Dcgan(nn.Module):
    """The generator of Radford et al. 2016 for pictures of 64 x 64."""

    def __init__(self, noise: int = 100, width: int = 64, doublings: int = 3) -> None:
        super().__init__()
        self.noise = noise
        layers: list[nn.Module] = []
        ci = noise
        for n in reversed(range(doublings + 1)):
            co = width * 2**n
            stride, pad = (1, 0) if ci == noise else (2, 1)
            layers += [nn.ConvTranspose2d(ci, co, 4, stride, pad, bias=False), nn.BatchNorm2d(co), nn.ReLU()]
            ci = co
        self.body = nn.Sequential(*layers, nn.ConvTranspose2d(ci, 3, 4, 2, 1, bias=False), nn.Tanh())

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, self.noise, 1, 1),)

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z)


class UNet(nn.Module):
    """Ronneberger et al. 2015, with padded convolutions and batch norms; halved `depth` times."""

    def __init__(self, width: int = 32, depth: int = 4, size: int = 256, classes: int = 2) -> None:
        super().__init__()
        self.size = size
        widths = [width * 2**n for n in range(depth + 1)]
        self.down = nn.ModuleList(self._twice(a, b) for a, b in pairwise((3, *widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(self._twice(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _twice(ci: int, co: int) -> nn.Sequential:
        return nn.Sequential(conv_norm(ci, co, act=nn.ReLU), conv_norm(co, co, act=nn.ReLU))

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return picture(batch, self.size)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for n, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if n else x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)
