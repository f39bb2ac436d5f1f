"""Programs that OpenCV has as one function, or a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.pipelines.contest import Array
from experiments.pipelines.programs.resampling import AFFINE
from experiments.pipelines.programs.stencils import BOX, GAUSS

Function = Callable[[Sequence[Array], Array], object]  # of the inputs and the array of the result


def function_of(name: str, threads: int) -> Function | None:
    """None where OpenCV has no such function, or is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(threads)
    return _functions(cv2).get(name)


def _functions(cv2: Any) -> dict[str, Function]:
    repeated = {"borderType": cv2.BORDER_REPLICATE}

    def inside(blurred: Array, out: Array) -> None:
        out[...] = blurred[1:-1, 1:-1]

    def bicubic(arrays: Sequence[Array], out: Array) -> None:
        for colour, target in zip(arrays[0], out, strict=True):
            cv2.resize(colour, target.shape[::-1], dst=target, interpolation=cv2.INTER_CUBIC)

    def warp(arrays: Sequence[Array], out: Array) -> None:
        how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        cv2.warpAffine(
            arrays[0], np.array(AFFINE), out.shape[::-1], dst=out, flags=how, borderMode=cv2.BORDER_REPLICATE
        )

    def local_normalisation(arrays: Sequence[Array], out: Array) -> None:
        (a,), box = arrays, (BOX, BOX)
        mean, power = cv2.blur(a, box, **repeated), cv2.sqrBoxFilter(a, cv2.CV_32F, box, **repeated)
        np.divide(a - mean, np.sqrt(power - mean * mean + np.float32(1e-3)), out=out)

    def unsharp(arrays: Sequence[Array], out: Array) -> None:
        (a,) = arrays
        grey = a[0] * np.float32(0.299) + a[1] * np.float32(0.587) + a[2] * np.float32(0.114)
        weights = np.array(GAUSS) / sum(GAUSS)
        soft = cv2.sepFilter2D(grey, cv2.CV_32F, weights, weights, **repeated)
        np.multiply(a, (grey * 2 - soft) / grey, out=out)

    return {
        "blur": lambda arrays, out: inside(cv2.blur(arrays[0], (3, 3)), out),
        "blur_edge": lambda arrays, out: cv2.blur(arrays[0], (3, 3), dst=out, **repeated),
        "unsharp": unsharp,
        "local_normalisation": local_normalisation,
        "maximum": lambda arrays, out: cv2.dilate(arrays[0], np.ones((9, 9), np.uint8), dst=out, **repeated),
        "blur_bytes": lambda arrays, out: inside(cv2.GaussianBlur(arrays[0], (3, 3), 0), out),
        "grey_bytes": lambda arrays, out: cv2.cvtColor(arrays[0], cv2.COLOR_RGB2GRAY, dst=out),
        "equalise": lambda arrays, out: cv2.equalizeHist(arrays[0], dst=out),
        "bicubic": bicubic,
        "warp": warp,
    }
