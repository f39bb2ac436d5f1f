"""Models with nodes that another engine runs: the results, the parts, and what is refused."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import FallbackWarning, GraphError, UsageError

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

from autosched.executor.fallback import Fallback  # noqa: E402
from autosched.executor.partitioned_model import PartitionedModel  # noqa: E402
from autosched.executor.parts import BranchPart, CompiledPart, LoopPart, VaryingPart  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["" : 20]>'
COUNTED = f"""{HEAD} counted (float[4, 6] x, float[6] w) => (float[N, 6] y, float[4, 6] z) {{
    first = Constant <value = int64[1] {{0}}> ()
    all = Constant <value = int64[1] {{-1}}> ()
    last = Constant <value = int64[1] {{1}}> ()
    six = Constant <value = int64[1] {{6}}> ()
    nothing = Constant <value = float {{0.0}}> ()
    z = Relu(x)
    at = NonZero(z)
    rows = Gather <axis = 0> (at, first)
    flat = Reshape(z, all)
    flags = Greater(flat, nothing)
    picked = Compress(flat, flags)
    column = Unsqueeze(picked, last)
    shape = Shape(at)
    n = Gather(shape, last)
    sizes = Concat <axis = 0> (n, six)
    wide = Expand(column, sizes)
    scaled = Mul(wide, w)
    whole = Cast <to = 1> (rows)
    across = Reshape(whole, all)
    number = Unsqueeze(across, last)
    y = Add(scaled, number)
}}"""
TEXTS = f"""{HEAD} texts (string[3] s, float[3] x) => (float[3] y) {{
    double = Add(x, x)
    is = RegexFullMatch <pattern = "a+"> (s)
    number = Cast <to = 1> (is)
    y = Mul(number, double)
}}"""
BRANCH = f"""{HEAD} branch (float[4] x, bool[1] flag) => (float[4] y) {{
    d = Exp(x)
    e = If (flag) <
        then_branch = yes () => (float[4] r) {{ r = Neg(d) }},
        else_branch = no () => (float[4] r) {{ r = Add(d, d) }}>
    y = Mul(e, x)
}}"""
LOOPS = f"""{HEAD} loops (float[3] x, int64 most, bool go) => (float[3] y, float[K, 3] rows, float[N, 3] grown) {{
    three = Constant <value = float {{3.0}}> ()
    start = Exp(x)
    axes = Constant <value = int64[1] {{0}}> ()
    begun = Unsqueeze(x, axes)
    v, w, rows = Loop (most, go, start, begun) <body = step (int64 n, bool c, float[3] a, float[M, 3] b)
        => (bool d, float[3] e, float[O, 3] f, float[3] g) {{
        number = Cast <to = 1> (n)
        moved = Add(a, number)
        e = Mul(moved, x)
        least = ReduceMin <keepdims = 0> (e)
        d = Less(least, three)
        row = Unsqueeze(e, axes)
        f = Concat <axis = 0> (b, row)
        g = If (d) <
            then_branch = yes () => (float[3] r) {{ r = Neg(e) }},
            else_branch = no () => (float[3] r) {{ r = Add(e, a) }}>
    }}>
    y = Sub(v, x)
    grown = Mul(w, three)
}}"""
TWICE = f"""{HEAD} twice (float[4] x, int64 most) => (float[4] y) {{
    going = Constant <value = int64 {{1}}> ()
    on = Cast <to = 9> (going)
    v = Loop (most, on, x) <body = step (int64 n, bool c, float[4] a) => (bool d, float[4] e) {{
        d = Identity(c)
        e = Sin(a)
    }}>
    y = Mul(v, x)
}}"""
STRANGE = """<ir_version: 9, opset_import: ["" : 20, "strange": 1]> strange (float[4] x) => (float[4] y) {
    d = strange.Thing(x)
    y = Exp(d)
}"""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that loads the model of a text, and expects a warning if another engine is used."""

    def loaded(text: str, **options: Any) -> Any:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if text not in (COUNTED, TEXTS):
                return at.load(path, threads=1, **options)
        with pytest.warns(FallbackWarning, match="is compiled in parts"):
            return at.load(path, threads=1, **options)

    return loaded


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def check(model: Any, text: str, **arrays: np.ndarray) -> None:
    wanted = reference.ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, arrays)
    results = model(**arrays)
    results = results if isinstance(results, tuple) else (results,)
    for result, want in zip(results, wanted, strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


def test_sizes_that_depend_on_data(load: Callable[..., Any]) -> None:
    """The same sizes twice: what follows is compiled at the second call, and other sizes follow."""
    model = load(COUNTED)
    assert [type(part) for part in model.parts] == [CompiledPart, Fallback, VaryingPart]
    x = numbers(4, 6)
    for given in (x, x, -x, x, -x, x.clip(-1, 0), -abs(x) + 0.1):
        check(model, COUNTED, x=given, w=numbers(6, seed=1))


def test_texts(load: Callable[..., Any]) -> None:
    model = load(TEXTS)
    assert [type(part) for part in model.parts] == [CompiledPart, Fallback, CompiledPart]
    check(model, TEXTS, s=np.array(["aa", "ab", "a"], object), x=numbers(3))
    assert [spec.name for spec in model.inputs] == ["s", "x"]
    assert str(model.outputs[0]) == "float32[3]"
    assert len(model.tasks) == 2


def test_branches_on_data(load: Callable[..., Any]) -> None:
    model = load(BRANCH)
    assert [type(part) for part in model.parts] == [CompiledPart, BranchPart, CompiledPart]
    for flag in (True, False):
        check(model, BRANCH, x=numbers(4), flag=np.array([flag]))


@pytest.mark.parametrize("most", [0, 1, 3, 20])
def test_loops_on_data(load: Callable[..., Any], most: int) -> None:
    """Carried values of one shape and of a growing one, rows, and a branch in the body."""
    model = load(LOOPS)
    assert [type(part) for part in model.parts] == [CompiledPart, LoopPart, VaryingPart]
    for go in (True, False, True):
        if most and go:
            check(model, LOOPS, x=abs(numbers(3)), most=np.array(most), go=np.array(go))
        else:
            y, rows, grown = model(x := abs(numbers(3)), np.array(most), np.array(go))
            np.testing.assert_allclose(y, np.exp(x) - x, rtol=1e-6)
            assert (rows.shape, grown.shape) == ((0, 3), (1, 3))


def test_bodies_of_one_shape_are_compiled_at_load(load: Callable[..., Any]) -> None:
    model = load(TWICE)
    assert [type(part) for part in model.parts] == [LoopPart, CompiledPart]
    assert str(model.outputs[0]) == "float32[4]"
    assert len(model.compiled_parts) == 2
    for most in (0, 1, 7):
        check(model, TWICE, x=numbers(4), most=np.array(most))


def test_results_are_written_to_given_arrays(load: Callable[..., Any]) -> None:
    model, out, x = load(BRANCH), np.zeros(4, "float32"), numbers(4)
    assert model(x, np.array([True]), out=out) is out
    np.testing.assert_allclose(out, -np.exp(x) * x, rtol=1e-6)
    with pytest.raises(UsageError, match=r"out has arrays of the shapes \[\[5\]\], and the results have \[\[4\]\]"):
        model(x, np.array([True]), out=np.zeros(5, "float32"))


def test_without_onnxruntime(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = load(TEXTS)
    assert [part.engine for part in model.parts if isinstance(part, Fallback)] == ["onnx.reference"]
    check(model, TEXTS, s=np.array(["aa", "ab", "a"], object), x=numbers(3))


def test_what_is_refused(tmp_path: Path, load: Callable[..., Any]) -> None:
    path = tmp_path / "strange.onnx"
    onnx.save(onnx.parser.parse_model(STRANGE), path)
    with pytest.raises(
        GraphError, match=r"not supported: strange.Thing .1, first d.; no other engine runs strange.Thing: onnxruntime"
    ):
        at.load(path)
    later = STRANGE.replace("d = strange.Thing(x)", "n = NonZero(x) m = Cast <to = 1> (n) d = strange.Thing(m)")
    onnx.save(onnx.parser.parse_model(later), path)
    with pytest.raises(GraphError, match=r"strange.Thing .1, first d.; no other engine runs strange.Thing$"):
        at.load(path)
    onnx.save(onnx.parser.parse_model(BRANCH), path)
    with pytest.raises(GraphError, match="If e: "):
        at.load(path, strict=True)


def test_verbs(load: Callable[..., Any], tmp_path: Path) -> None:
    """Compiled parts are explained and verified; what needs one program says why there is none."""
    model = load(TEXTS)
    assert isinstance(model, PartitionedModel)
    explanation = at.explain(model)
    assert [fallback.operators for fallback in explanation.fallbacks] == [("RegexFullMatch",)]
    assert 0 < explanation.fallbacks[0].seconds < explanation.call_s
    assert at.verify(model).passed
    with pytest.raises(UsageError, match="texts is no single program"):
        model.save(tmp_path / "texts.asc")


def test_dynamic_shapes(tmp_path: Path) -> None:
    text = COUNTED.replace("float[4, 6] x", "float[rows, 6] x").replace("float[4, 6] z", "float[rows, 6] z")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    model = at.load_dynamic(path, threads=1)
    with pytest.warns(FallbackWarning, match="is compiled in parts"):
        check(model, text, x=numbers(4, 6), w=numbers(6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for rows in (1, 4, 3):
            check(model, text, x=numbers(rows, 6), w=numbers(6))
    assert model.sizes == ({"rows": 1}, {"rows": 4}, {"rows": 3})
    strict = at.load_dynamic(path, threads=1, strict=True)
    with pytest.raises(GraphError, match="NonZero"):
        strict(numbers(2, 6), numbers(6))


def test_a_branch_that_does_not_fit_the_sizes(load: Callable[..., Any]) -> None:
    """Of a model for two rates, only one branch is right for the length of the input."""
    text = f"""{HEAD} rates (float[6] x, bool flag) => (float[N] y) {{
        y = If (flag) <
            then_branch = yes () => (float[2, 3] r) {{
                wide = Constant <value = int64[2] {{2, 3}}> ()
                s = Reshape(x, wide)
                r = Exp(s)
            }},
            else_branch = no () => (float[2, 4] r) {{
                wide = Constant <value = int64[2] {{2, 4}}> ()
                s = Reshape(x, wide)
                r = Exp(s)
            }}>
    }}"""
    model, x = load(text), numbers(6)
    np.testing.assert_allclose(model(x, np.array(True)), np.exp(x).reshape(2, 3), rtol=1e-6)
    with pytest.raises((UsageError, GraphError), match="Reshape"):
        model(x, np.array(False))
