"""Search spaces: sketches with integer parameters, and array operations on their populations."""

from __future__ import annotations

from search_spaces.space import Param, Sketch

__all__ = ["Param", "Sketch"]
