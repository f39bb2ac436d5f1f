"""Kernels that were built before, by the key of their recipe: the fields of a `KernelObject`, the keys of its parts,
and its code. A kernel of which a part is gone is as good as absent."""

from __future__ import annotations

from autosched.network.kept_files import keep, read_kept
from autosched.network.pieces import find_part
from autosched.network.recipe import KernelObject, Recipe

_FIELDS = ("name", "array_bytes", "workspace_bytes", "packed_bytes", "winograd", "steps", "sketch", "estimate_s")


def find_object(recipe: Recipe) -> KernelObject | None:
    """The kernel of a recipe if it was built before."""
    found = read_kept(recipe.key)
    if found is None:
        return None
    facts, code = found
    try:
        if facts["name"] != recipe.name:
            return None
        parts = [find_part(key) for key in facts["parts"]]
        kept = tuple(part for part in parts if part is not None)
        if len(kept) < len(parts):
            return None
        facts["array_bytes"] = tuple(facts["array_bytes"])
        return KernelObject(code=code, parts=kept, **{name: facts[name] for name in _FIELDS})
    except (KeyError, TypeError):
        return None


def keep_object(recipe: Recipe, made: KernelObject) -> None:
    """Writes a kernel for later; its parts are there. Raises UsageError where the directory cannot be used."""
    facts = {name: getattr(made, name) for name in _FIELDS} | {"parts": [part.key for part in made.parts]}
    keep(recipe.key, facts, made.code)
