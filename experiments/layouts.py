"""What convolutions take with images in blocks of channels, [N, C/16, H, W, 16], beside channels last, [N, H, W, C].

    python -m experiments.layouts --threads 1 --json layouts.json

Cases are convolutions of ResNet-50 and MobileNet-V2, weights packed ahead in both. Each is tuned, and the two kernels
are timed in turn; what it would cost to change the layout of an image is in neither. A network can gain by blocks no
more than this says.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import autosched as at
from autosched import te
from autosched.cli import options
from autosched.cli.bench import geomean, time_interleaved
from autosched.te.tensor import Tensor
from experiments.hostinfo import host_facts

LANES = 16
TRIALS = 24
RIGHT = 1e-4  # of the largest element


@dataclass(frozen=True)
class Image:
    """A convolution of images of `size` by `size` pixels and `ci` channels; `depthwise`: a filter for each channel."""

    size: int
    ci: int
    co: int
    taps: int = 1
    stride: int = 1
    depthwise: bool = False

    @property
    def padded(self) -> int:
        return self.size + 2 * (self.taps // 2)

    @property
    def made(self) -> int:
        return (self.padded - self.taps) // self.stride + 1


CASES = (
    *(Image(56, 64, 64, 3), Image(56, 256, 64), Image(56, 64, 256), Image(28, 128, 128, 3), Image(28, 512, 128)),
    *(
        Image(14, 256, 256, 3),
        Image(14, 1024, 256),
        Image(7, 512, 512, 3),
        Image(7, 512, 2048),
        Image(56, 128, 128, 3, 2),
    ),
    *(Image(112, 32, 32, 3, 1, True), Image(56, 144, 144, 3, 1, True), Image(28, 192, 192, 3, 2, True)),
    *(Image(14, 576, 576, 3, 1, True), Image(56, 144, 32), Image(14, 96, 576), Image(7, 960, 160)),
)


def channels_last(c: Image) -> Callable[[], Tensor]:
    def conv() -> Tensor:
        x = te.placeholder((1, c.padded, c.padded, c.ci), name="X")
        w = te.placeholder((c.taps, c.taps, *((c.co,) if c.depthwise else (c.ci, c.co))), name="W")
        r, s, k = (te.reduce_axis(n, name=name) for n, name in ((c.taps, "r"), (c.taps, "s"), (c.ci, "k")))

        def at_place(n: Any, y: Any, z: Any, o: Any) -> Any:
            if c.depthwise:
                return te.sum(x[n, y * c.stride + r, z * c.stride + s, o] * w[r, s, o], axis=[r, s])
            return te.sum(x[n, y * c.stride + r, z * c.stride + s, k] * w[r, s, k, o], axis=[r, s, k])

        result: Tensor = te.compute((1, c.made, c.made, c.co), at_place, name="Y")
        return result

    return conv


def in_blocks(c: Image) -> Callable[[], Tensor]:
    def conv() -> Tensor:
        x = te.placeholder((1, c.ci // LANES, c.padded, c.padded, LANES), name="X")
        w = te.placeholder((c.taps, c.taps, *((c.co,) if c.depthwise else (c.ci, c.co))), name="W")
        r, s = te.reduce_axis(c.taps, name="r"), te.reduce_axis(c.taps, name="s")
        k, lane = te.reduce_axis(c.ci // LANES, name="k"), te.reduce_axis(LANES, name="lane")

        def at_place(n: Any, b: Any, y: Any, z: Any, o: Any) -> Any:
            pixel = (y * c.stride + r, z * c.stride + s)
            if c.depthwise:
                return te.sum(x[(n, b, *pixel, o)] * w[r, s, b * LANES + o], axis=[r, s])
            weight = w[r, s, k * LANES + lane, b * LANES + o]
            return te.sum(x[(n, k, *pixel, lane)] * weight, axis=[r, s, k, lane])

        result: Tensor = te.compute((1, c.co // LANES, c.made, c.made, LANES), at_place, name="Y")
        return result

    return conv


def compared(case: Image, threads: int, trials: int) -> dict[str, Any]:
    """Seconds of both kernels. Raises AssertionError where they do not compute the same."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, case.padded, case.padded, case.ci), "float32")
    w = rng.standard_normal((case.taps, case.taps, *((case.co,) if case.depthwise else (case.ci, case.co))), "float32")
    blocks = np.ascontiguousarray(x.reshape(*x.shape[:3], -1, LANES).transpose(0, 3, 1, 2, 4))
    kernels = [_tuned(make(case), w, threads, trials) for make in (channels_last, in_blocks)]
    results = [kernel(image) for kernel, image in zip(kernels, (x, blocks), strict=True)]
    same = results[1].transpose(0, 2, 3, 1, 4).reshape(results[0].shape)
    assert np.abs(same - results[0]).max() <= RIGHT * np.abs(same).max(), case
    last, blocked = (lambda: kernels[0](x, out=results[0])), (lambda: kernels[1](blocks, out=results[1]))
    times = time_interleaved({"channels_last": last, "blocks": blocked})
    flops = 2 * case.made**2 * case.co * case.taps**2 * (1 if case.depthwise else case.ci)
    return {"case": asdict(case), "seconds": times, "flops": flops}


def _tuned(conv: Callable[[], Tensor], w: Any, threads: int, trials: int) -> at.Kernel:
    kernel = at.tune(conv, trials=trials, weights=["W"], threads=threads).compile()
    assert isinstance(kernel, at.Kernel)
    return kernel.bind(W=w)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=options.integer(1), default=1)
    parser.add_argument("--trials", type=options.integer(1), default=TRIALS)
    parser.add_argument("--cases", type=options.integer(1), default=len(CASES), help="only the first ones")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows, gains = [], []
    for case in CASES[: args.cases]:
        row = compared(case, args.threads, args.trials)
        gains.append(row["seconds"]["channels_last"] / row["seconds"]["blocks"])
        rows.append(row)
        each = "  ".join(f"{name} {1e6 * s:.1f} us" for name, s in row["seconds"].items())
        print(f"{case}: {each}  blocks are {gains[-1]:.3f} times as fast", flush=True)
    best = math.exp(np.mean(np.log(np.maximum(gains, 1.0))))
    print(f"geometric mean {geomean(gains):.3f}, of the better of the two {best:.3f}")
    if args.json:
        facts = {"host": host_facts(), "threads": args.threads, "trials": args.trials, "rows": rows}
        args.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
