"""Search spaces: sketches with integer parameters, and array operations on their populations."""

from __future__ import annotations

from search_spaces.space import Sketch, SketchParam

__all__ = ["Sketch", "SketchParam"]
