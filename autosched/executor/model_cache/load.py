"""Load of a network from its entry in the model cache."""

from __future__ import annotations

from functools import partial

from autosched.errors import UsageError
from autosched.executor.compile_options import BACKGROUND
from autosched.executor.model import Model
from autosched.executor.model_cache.cached_model import CachedModel
from autosched.executor.model_cache.entry import CachedNetwork, changed_file, find_linked, keep_linked
from autosched.executor.model_cache.request import LoadRequest
from autosched.executor.specialise import specialise
from autosched.graph.load_progress import report_stage
from autosched.runtime.linked_network import LinkedNetwork


def load_cached(request: LoadRequest) -> Model | None:
    """Return the network of a request from the cache; None for a miss."""
    report_stage("linking")
    if (cached := find_linked(request)) is None:
        return None
    model = CachedModel(cached.linked, request.device, partial(_compile_again, request, cached))
    is_improved = request.options.specialise == BACKGROUND and not cached.is_final
    return specialise(model, partial(keep_linked, request)) if is_improved else model


def _compile_again(request: LoadRequest, cached: CachedNetwork, linked: LinkedNetwork) -> Model:
    """Return the network, compiled in the ordinary way. Raises UsageError if a file has changed since the load."""
    from autosched.executor.compile_graph import compile_linked
    from autosched.executor.load import load_network, loading

    with loading(request.path, None):
        _check_unchanged(request, cached)
        graph, choices = load_network(request.path, None, request.sizes, request.inputs, request.options.winograd)
        _check_unchanged(request, cached)
        return compile_linked(graph, request.options, choices, linked)


def _check_unchanged(request: LoadRequest, cached: CachedNetwork) -> None:
    if (path := changed_file(request, cached.external)) is not None:
        raise UsageError(f"{path} has changed since the network was loaded from it: load the network again")
