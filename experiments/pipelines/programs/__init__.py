"""The pipelines, by name. Each is a function of a maker, rows and columns of its result."""

from __future__ import annotations

from experiments.pipelines.programs.blended import bilateral_grid, interpolate, local_laplacian
from experiments.pipelines.programs.camera import camera_pipe
from experiments.pipelines.programs.features import edges, wavelets
from experiments.pipelines.programs.integers import blur_bytes, demosaic, equalise, grey_bytes
from experiments.pipelines.programs.lens import lens_blur
from experiments.pipelines.programs.recursive import iir
from experiments.pipelines.programs.resampling import bicubic, pyramid, warp
from experiments.pipelines.programs.stencils import (
    blur,
    blur_edge,
    chain,
    harris,
    local_normalisation,
    maximum,
    non_local_means,
    unsharp,
)  # fmt: skip
from experiments.pipelines.programs.terms import Program

_ALL: tuple[Program, ...] = (
    blur, blur_edge, unsharp, harris, chain, local_normalisation, maximum, non_local_means, demosaic,
    blur_bytes, grey_bytes, equalise, pyramid, bicubic, warp, iir,
    camera_pipe, local_laplacian, bilateral_grid, interpolate, lens_blur, edges, wavelets,
)  # fmt: skip
PROGRAMS = {program.__name__: program for program in _ALL}
# Programs whose rows and columns are divided by a number: what they store is many times an image.
SHRUNK = {"lens_blur": 8}

__all__ = ["PROGRAMS", "SHRUNK", "Program"]
