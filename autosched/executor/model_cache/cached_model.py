"""Model that was linked from an entry of the model cache: its execution plan is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from autosched.executor.model import DelegatingModel, Model
from autosched.kernel.device import Device
from autosched.runtime.linked_network import LinkedNetwork, NetworkKernel

if TYPE_CHECKING:
    pass


class CachedModel(NetworkKernel, DelegatingModel):
    """A linked network. `compile_again`: a function that loads the same file in the ordinary way, and takes the linked
    network if the execution plan is the same."""

    def __init__(self, linked: LinkedNetwork, device: Device, compile_again: Callable[[LinkedNetwork], Model]) -> None:
        super().__init__(linked)
        self.device = device
        self._compile_again, self._compiled, self._lock = compile_again, list[Model](), Lock()

    @property
    def whole(self) -> Model:
        """The model with its graph and execution plan, made at the first use. Raises what loading raises."""
        with self._lock:
            if not self._compiled:
                self._compiled.append(self._compile_again(self.linked))
        return self._compiled[0]
