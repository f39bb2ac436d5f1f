"""Kernels of known networks, as steps of the sizes that their papers give: float32, one image, after the base fusion.

A convolution takes in what follows it element by element, the addition of a residual branch too. Input and
result of the network are not in the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autosched.graph.memory.liveness import KernelRun


@dataclass
class Layers:
    """Steps that are written down one after the other; values are named by number."""

    steps: list[KernelRun] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, elements: int, *reads: str) -> str:
        """The value of one more step."""
        name = f"v{len(self.steps)}"
        self.steps.append(KernelRun(reads, (name,)))
        self.sizes[name] = 4 * elements
        return name

    def end(self, *reads: str) -> Layers:
        """With the last step, whose result is the network's and lies elsewhere."""
        self.steps.append(KernelRun(reads, ("result",)))
        return self


def resnet50() -> Layers:
    """He et al. 2015, table 1: bottlenecks of 1x1, 3x3 and 1x1 convolutions, four stages at 56, 28, 14 and 7 squared."""
    net = Layers()
    x = net.add(64 * 56 * 56, net.add(64 * 112 * 112, "image"))
    for width, blocks, size in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            before = 2 * size if block == 0 and size < 56 else size  # the 3x3 convolution has the stride
            inner = net.add(width * size * size, net.add(width * before * before, x))
            short = net.add(4 * width * size * size, x) if block == 0 else x
            x = net.add(4 * width * size * size, inner, short)
    return net.end(net.add(2048, x))


def mobilenet_v2() -> Layers:
    """Sandler et al. 2018, table 2: (expansion, channels, repeats, stride) of inverted residuals."""
    net = Layers()
    size, channels = 112, 32
    x = net.add(channels * size * size, "image")
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, width, repeats, stride in table:
        for block in range(repeats):
            wide = x if expansion == 1 else net.add(expansion * channels * size * size, x)
            after = size // stride if block == 0 else size
            deep = net.add(expansion * channels * after * after, wide)
            x = net.add(width * after * after, deep, *([x] if block else []))
            size, channels = after, width
    return net.end(net.add(1280, net.add(1280 * size * size, x)))


def unet() -> Layers:
    """Ronneberger et al. 2015, with padding: 256 squared, 32 channels at the top, four levels below it."""
    net = Layers()
    x, skips = "image", []
    levels = [(32 << level, 256 >> level) for level in range(5)]
    for channels, size in levels[:-1]:
        skips.append(net.add(channels * size * size, net.add(channels * size * size, x)))
        x = net.add(channels * size * size // 4, skips[-1])
    channels, size = levels[-1]
    x = net.add(channels * size * size, net.add(channels * size * size, x))
    for (channels, size), skip in zip(reversed(levels[:-1]), reversed(skips), strict=True):
        up = net.add(channels * size * size, x)
        both = net.add(2 * channels * size * size, skip, up)
        x = net.add(channels * size * size, net.add(channels * size * size, both))
    return net.end(x)


def bert() -> Layers:
    """Devlin et al. 2018, base: 128 words of 768 numbers; three projections, attention as one kernel, normalisation."""
    net = Layers()
    hidden = 128 * 768
    x = net.add(hidden, net.add(hidden, "ids"))
    for _ in range(12):
        mixed = net.add(hidden, *[net.add(hidden, x) for _ in range(3)])
        x = net.add(hidden, net.add(hidden, mixed, x))
        x = net.add(hidden, net.add(hidden, net.add(4 * hidden, x), x))
    return net.end(x)


@dataclass(frozen=True)
class Known:
    """What is known of a network: kernels, and in MiB all values and the most that are alive at once."""

    make: Callable[[], Layers]
    kernels: int
    total: float
    bound: float


NETWORKS: Mapping[str, Known] = {
    "ResNet-50": Known(resnet50, 56, 43.2, 6.9),
    "MobileNet-V2": Known(mobilenet_v2, 54, 25.5, 5.7),
    "U-Net": Known(unet, 31, 109.8, 32.0),
    "BERT-base": Known(bert, 111, 54.8, 2.25),
}
