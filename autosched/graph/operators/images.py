"""Layouts of images: channels first or last, so that operators on images are written once for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Images:
    """Tensors [N, C, sizes...], or [N, sizes..., C] with `channels_last`."""

    channels_last: bool = False

    def __str__(self) -> str:
        return "[N, ..., C]" if self.channels_last else "[N, C, ...]"

    def index(self, n: T, c: T, rest: Iterable[T]) -> tuple[T, ...]:
        """Return items for batch, channels and spatial axes in the order of the layout."""
        return (n, *rest, c) if self.channels_last else (n, c, *rest)

    def parts(self, items: Sequence[T]) -> tuple[T, T, tuple[T, ...]]:
        """Return the items for batch, channels and spatial axes, the inverse of `index`."""
        n, *others = items
        c = others.pop(-1 if self.channels_last else 0)
        return n, c, tuple(others)

    def channel(self, index: Sequence[T]) -> T:
        return index[-1 if self.channels_last else 1]

    def terms(self, channel: T, taps: Sequence[T]) -> list[T]:
        """Return the reduction axes of a convolution, the one that is contiguous in the image last."""
        return [*taps, channel] if self.channels_last else [channel, *taps]

    def by(self, at: Callable[..., Any]) -> Callable[..., Any]:
        """at(n, c, *position) as a function of an index."""

        def of_index(*index: Any) -> Any:
            n, c, position = self.parts(index)
            return at(n, c, *position)

        return of_index
