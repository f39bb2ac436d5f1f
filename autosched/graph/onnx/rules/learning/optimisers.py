"""Rules of optimisers: one step of the weights of a model that is trained, by their gradients.

The operands are the learning rate, the number of steps before this one, and the weights, the gradients and what is kept
from step to step, of all tensors each; the results are the new weights and what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from autosched.graph.onnx.site import Results, Site, refuse, rule

TRAINING = "ai.onnx.preview.training"  # the domain of these operators
Step = Callable[..., tuple[str, ...]]  # weights, gradients and what is kept of a tensor -> the new ones


class _Elementwise:
    """Elementwise arithmetic on values and numbers."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def emit(self, operator: str, a: str | float, b: str | float) -> str:
        dtype = next(self._site.dtype(x) for x in (a, b) if isinstance(x, str))
        x, y = (self._site.cast(v, dtype) if isinstance(v, str) else self._site.constant(v, dtype) for v in (a, b))
        return self._site.emit(operator, x, y)

    def add(self, a: str | float, b: str | float) -> str:
        return self.emit("add", a, b)

    def sub(self, a: str | float, b: str | float) -> str:
        return self.emit("sub", a, b)

    def mul(self, a: str | float, b: str | float) -> str:
        return self.emit("mul", a, b)

    def div(self, a: str | float, b: str | float) -> str:
        return self.emit("div", a, b)

    def root(self, a: str) -> str:
        return self._site.emit("sqrt", a)


def of_each_tensor(site: Site, n_kept: int, step: Step) -> Results:
    """Apply a step to each tensor, with the `n_kept` values that are kept of it."""
    given = site.all_inputs()[2:]
    count = len(given) // (2 + n_kept)
    refuse(count * (2 + n_kept) != len(given), f"a step of {len(given)} operands")
    rows = [step(*given[n::count]) for n in range(count)]
    return tuple(row[k] for k in range(1 + n_kept) for row in rows)


@rule("Adagrad", domain=TRAINING)
def adagrad(site: Site) -> Results:
    a, (rate, count) = _Elementwise(site), (site.input(0), site.input(1))
    decay, epsilon = site.attribute("decay_factor", 0.0), site.attribute("epsilon", 0.0)
    norm = site.attribute("norm_coefficient", 0.0)

    def step(x: str, gradient: str, squares: str) -> tuple[str, ...]:
        slower = a.div(rate, a.add(a.mul(site.cast(count, site.dtype(rate)), decay), 1.0))
        whole = a.add(gradient, a.mul(x, norm))
        summed = a.add(squares, a.mul(whole, whole))
        return a.sub(x, a.div(a.mul(whole, slower), a.add(a.root(summed), epsilon))), summed

    return of_each_tensor(site, 1, step)


@rule("Adam", domain=TRAINING)
def adam(site: Site) -> Results:
    """The rate is corrected for the means of the first steps, but in step 0."""
    a, (rate, count) = _Elementwise(site), (site.input(0), site.input(1))
    alpha, beta = site.attribute("alpha", 0.9), site.attribute("beta", 0.999)
    epsilon = site.attribute("epsilon", 0.0)
    norm, norm_after = site.attribute("norm_coefficient", 0.0), site.attribute("norm_coefficient_post", 0.0)
    steps = site.cast(count, site.dtype(rate))
    corrections = [a.sub(1.0, a.emit("pow", site.constant(base, site.dtype(rate)), steps)) for base in (alpha, beta)]
    corrected = a.mul(rate, a.div(a.root(corrections[1]), corrections[0]))
    rate = site.emit("where", site.emit("greater", steps, site.constant(0, site.dtype(rate))), corrected, rate)

    def step(x: str, gradient: str, mean: str, squares: str) -> tuple[str, ...]:
        whole = a.add(gradient, a.mul(x, norm))
        mean = a.add(a.mul(mean, alpha), a.mul(whole, 1 - alpha))
        squares = a.add(a.mul(squares, beta), a.mul(a.mul(whole, whole), 1 - beta))
        moved = a.sub(x, a.mul(a.div(mean, a.add(a.root(squares), epsilon)), rate))
        return a.mul(moved, 1 - norm_after), mean, squares

    return of_each_tensor(site, 2, step)


@rule("Momentum", domain=TRAINING)
def momentum(site: Site) -> Results:
    """In step 0 the gradient counts in full."""
    a, (rate, count) = _Elementwise(site), (site.input(0), site.input(1))
    alpha, beta, norm = (site.attribute(name) for name in ("alpha", "beta", "norm_coefficient"))
    mode = site.attribute("mode")
    refuse(mode not in ("standard", "nesterov"), f"the mode {mode}")
    is_later = site.emit("greater", count, site.constant(0, site.dtype(count)))

    def step(x: str, gradient: str, kept: str) -> tuple[str, ...]:
        shares = [site.constant(share, site.dtype(x)) for share in (beta, 1.0)]
        whole = a.add(gradient, a.mul(x, norm))
        kept = a.add(a.mul(kept, alpha), a.mul(whole, site.emit("where", is_later, *shares)))
        direction = kept if mode == "standard" else a.add(whole, a.mul(kept, alpha))
        return a.sub(x, a.mul(direction, rate)), kept

    return of_each_tensor(site, 1, step)
