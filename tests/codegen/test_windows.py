"""Register tiles over windows: each element of the input is loaded once, and beyond the border nothing is read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autosched import te
from autosched.ir.closed_forms.program import Program
from autosched.lower import lower
from autosched.runtime.jit import emit_assembly
from autosched.target import Target, host_arch, parse_target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import build as workload
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.statements import analyse
from cost_model.model import sketch_model
from search_spaces.cpu import sketches
from search_spaces.space import Sketch
from tests.codegen.running import build, check_outputs, run, targets, targets_in_turn
from tests.codegen.test_assembly import innermost_loops

HOST = parse_target("cpu")


def window(name: str, target: Target, dtype: str = "float32", **settings: int) -> tuple[ComputeDAG, Sketch]:
    """The operator with its padding as a condition of the reads."""
    dag = collapse(workload(name, settings=settings, dtype=dtype)[0])
    found = sketches(dag, target, 1)
    return dag, next((s for s in found if s.name.endswith("pad@inline")), found[0])


def tile(sketch: Sketch, rows: int, columns: int, vectors: int, steps: int = 3) -> dict[str, int]:
    """Tiles of rows x columns outputs, each of `vectors` vectors, where two of what halves are summed in are one of
    halves; the reduction written out in `steps` of each loop."""
    if sketch.state.outputs[0].dtype == "float16":
        vectors = -(-vectors // 2)
    sizes = {"oh": rows, "ow": columns, "i1": rows, "i2": columns}
    values = {}
    for param in sketch.params:
        axis = param.name.split(".")[-2]
        if param.kind == "unroll":
            wanted = steps
        elif param.kind == "vector":
            wanted = param.domain[0] * vectors
        else:
            wanted = sizes.get(axis, 1) if param.name.endswith(".r") else 2
        values[param.name] = max(v for v in param.domain if v <= max(wanted, param.domain[0]))
    return values


OPERATORS = (
    ("dep", "float32"), ("dep", "float64"), ("dep", "int8"), ("dep", "float16"), ("avg_pool2d", "float32"),
    ("max_pool2d", "float32"), ("max_pool2d", "uint8"),
)  # fmt: skip


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("row", range(len(OPERATORS)), ids=lambda n: "-".join(OPERATORS[n]))
def test_windows_compute_what_the_reference_does(row, column):
    """The sides of an image are no multiples of a tile's, both, one or (with large tiles) the other."""
    sizes, height, stride = (((2, 3, 1, 3), 9, 1), ((3, 2, 2, 3), 9, 2), ((4, 4, 2, 2), 8, 1))[column]
    name, dtype = OPERATORS[row]
    for target in targets_in_turn(row, column, 3):
        dag, sketch = window(name, target, dtype, N=1, H=height, W=7, C=37, k=3, stride=stride, pad=1)
        values = tile(sketch, *sizes)
        data = make_inputs(dag, 0, "normal")
        check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("rows", "columns", "stride"), [(4, 4, 1), (2, 7, 1), (2, 3, 2)])
def test_an_element_is_loaded_once_for_all_outputs(rows, columns, stride):
    target = parse_target("llvm -mcpu=znver4")
    lanes = target.vector_bytes // 4
    size = {"H": (rows - 1) * stride + 3, "W": (columns - 1) * stride + 3}
    _, sketch = window("dep", target, N=1, C=lanes, k=3, stride=stride, pad=0, **size)
    assembly = emit_assembly(build(sketch.state, target, 1, tile(sketch, rows, columns, 1)).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    reads = re.findall(r"\n\tv(?:movups|fmadd\w+)\t[^\n]*\([^)]*\), ?%zmm|\n\tvfmadd\w+\t[^\n%]*\(", body)
    assert len(reads) <= size["H"] * size["W"] + 9, "each element of X and of W"
    assert not re.search(r"vmov\w+\t%zmm\d+, [^\n]*\(%rsp", body), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd", body)) + len(re.findall(r"\n\tvmulps", body)) == 9 * rows * columns


@pytest.mark.parametrize(("name", "fill"), [("dep", "0x0000000000000000"), ("max_pool2d", "0xFFF0000000000000")])
def test_what_is_beyond_the_border_is_read_from_a_constant(name, fill):
    _, sketch = window(name, HOST, N=1, H=8, W=8, C=16, k=3, stride=1, pad=1)
    source = build(sketch.state, HOST, 1, tile(sketch, 2, 2, 1))
    assert f"@fill.float.{fill} = private unnamed_addr constant" in source.ir
    assert "phi <" not in source.ir, "no branch for a read"


def in_rows(
    name: str, target: Target, pad: int = 1, width: int = 20, k: int = 3, height: int = 9
) -> tuple[ComputeDAG, Sketch]:
    """The operator on images whose channels are first, so that the lanes go along the window."""
    settings = {"N": 1, "C": 4, "H": height, "W": width, "k": k, "stride": 1, "pad": pad, "layout": "NCHW"}
    dag = collapse(workload(name, settings=settings, dtype="float32")[0])
    return dag, next(s for s in sketches(dag, target, 1) if not pad or s.name.endswith("pad@inline"))


@pytest.mark.parametrize("name", ["depthwise", "max_pool2d"])
@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
def test_padding_beside_lanes_is_what_the_reference_says(name, target):
    dag, sketch = in_rows(name, target)
    data = make_inputs(dag, 0, "normal")
    for values in (tile(sketch, 4, 1, 1), tile(sketch, 2, 1, 2), tile(sketch, 3, 1, 1, steps=1)):
        check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.parametrize(("pad", "k"), [(3, 7), (0, 5)])
@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
def test_a_window_of_many_points_goes_step_by_step(target, pad, k):
    """Along rows where the lanes lie along rows, along either where they are channels; tiles take turns."""
    rows = in_rows("depthwise", target, pad, k=k)
    channels = window("dep", target, N=1, H=9, W=7, C=19, k=k, stride=1, pad=k // 2)
    tiles = ((5, 1, 1), (3, 2, 2))
    for (dag, sketch), sizes in zip((rows, channels), tiles if pad else tiles[::-1], strict=True):
        data, values = make_inputs(dag, 0, "normal"), tile(sketch, *sizes, steps=k)
        check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_a_step_of_a_large_window_reads_each_row_once():
    """7 x 7 points of W do not fit beside 14 accumulators, a column of them does."""
    target = parse_target("llvm -mcpu=znver4")
    _, sketch = in_rows("depthwise", target, pad=0, width=38, k=7)
    values = tile(sketch, 3, 1, 2, steps=7)
    assembly = emit_assembly(build(sketch.state, target, 1, values).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    assert not re.search(r"vmov\w+\t%zmm\d+, [^\n]*\(%rsp", body), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd", body)) == 49 * 3 * 2
    images = re.findall(r"\n\tv(?:movups|fmadd\w+)\t[^\n%]*\([^)]*\), ?%zmm", body)
    assert len(images) <= 7 * 9 * 2, "each vector of X once for a column of W"


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
def test_images_of_several_channels_pass_one_after_another(target):
    """The weights of one channel wait in registers at a time."""
    dag, sketch = in_rows("depthwise", target, width=14, height=14)
    values = tile(sketch, 14, 1, 1)
    values.update({name: 4 for name in values if name.endswith(".c.r")})
    kernel = build(sketch.state, target, 1, values)
    data = make_inputs(dag, 0, "normal")
    check_outputs(dag, data, run(kernel, dag, data, target), f"{values}")
    if target.n_vector_registers == 32 and host_arch() == "x86_64":
        assembly = emit_assembly(kernel.ir, target)
        body = assembly[: assembly.index(".size\tkernel.nest0")]
        assert not re.search(r"vmov\w+\t%[yz]mm\d+, [^\n]*\(%rsp", body), "nothing is spilled"


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_a_window_that_would_hardly_pass_comes_apart():
    """25 weights and 5 outputs are 30 registers of 32; of a column's weights 5, beside all 14 outputs."""
    target = parse_target("llvm -mcpu=znver4")
    _, sketch = in_rows("depthwise", target, pad=0, width=20, k=5, height=18)
    assembly = emit_assembly(build(sketch.state, target, 1, tile(sketch, 14, 1, 1, steps=5)).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    assert not re.search(r"vmov\w+\t%zmm\d+, [^\n]*\(%rsp", body), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd", body)) == 25 * 14


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_elements_that_lanes_share_do_not_wait_for_the_next_vector():
    """A first layer: 3 channels, and two vectors of output channels for each element of the image."""
    target = parse_target("llvm -mcpu=znver4")
    lanes = target.vector_bytes // 4
    dag, sketch = window("c2d", target, N=1, H=17, W=17, CI=3, CO=2 * lanes, k=3, stride=2, pad=0)
    values = tile(sketch, 2, 2, 2)
    kernel = build(sketch.state, target, 1, values)
    body = emit_assembly(kernel.ir, target)
    body = body[: body.index(".size\tkernel.nest0")]
    assert len(re.findall(r"vmov\w+\t%zmm\d+, [^\n]*\(%rsp", body)) < 5, "22 if each waits for the next vector"
    if HOST.vector_bytes == target.vector_bytes:
        data = make_inputs(dag, 0, "normal")
        check_outputs(dag, data, run(kernel, dag, data, target), f"{values}")


def row_of_window(
    target: Target, rows: int, stride: int, pad: int, channels: int = 1
) -> tuple[ComputeDAG, Sketch, dict[str, int]]:
    """A convolution of 15 channels to two vectors of them, a row of its 3x3 window written out, `channels` at a time."""
    settings = {"N": 1, "H": 5, "W": 14, "CI": 15, "CO": 2 * target.vector_bytes // 4, "k": 3}
    dag, sketch = window("c2d", target, stride=stride, pad=pad, **settings)
    values = tile(sketch, rows, 5, 2)
    values |= {name: channels for name in values if name.endswith(".ci.u")}
    return dag, sketch, values


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
def test_a_row_of_a_window_that_lanes_share_is_what_the_reference_says(target):
    """Tiles inside, at both borders and at the end of a row; where one row, or that of one channel, fits, and not."""
    for rows, stride, pad, channels in ((1, 1, 1, 1), (2, 2, 0, 2), (1, 2, 2, 2)):
        dag, sketch, values = row_of_window(target, rows, stride, pad, channels)
        assert [n for n in values if n.endswith("kw.u")]
        data = make_inputs(dag, 0, "normal")
        check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_an_element_that_lanes_share_is_loaded_once_for_a_row_of_the_window():
    """Five outputs and a row of three taps: seven elements and six vectors of weights for 30 products."""
    target = parse_target("llvm -mcpu=znver4")
    _, sketch, values = row_of_window(target, 1, 1, 1)
    text = emit_assembly(build(sketch.state, target, 1, values).ir, target)
    loops = [x for x in innermost_loops(text) if x.count("vfmadd")]
    whole = [x for x in loops if x.count("vfmadd") == 30]
    assert all((x.count("vbroadcastss"), x.count("vmovups"), x.spills) == (7, 6, []) for x in whole)
    assert {x.count("vfmadd") for x in loops} == {30, 28, 24, 22}, "what is beyond the border is not multiplied"
    assert not any(x.count("cmov") for x in loops), "nor looked for in each step"
    model = sketch_model(lower(sketch.state), tuple(values), target, 1)
    (cost,) = (c for c in model.latency.costs if c.statement.updates and c.statement.accumulators)
    found = Program([cost.block.loads, cost.block.spills, cost.statement.border], tuple(values))
    assert found(np.array([list(values.values())]))[:, 0] == pytest.approx((7 + 6, 0, 0), abs=0.5)


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_a_masked_load_fills_the_padding_itself():
    """A blend after the load waits for the ports of the multiply-adds."""
    target = parse_target("llvm -mcpu=znver4")
    _, sketch = in_rows("depthwise", target)
    assembly = emit_assembly(build(sketch.state, target, 1, tile(sketch, 2, 1, 2)).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    assert re.search(r"\n\tvmovups\t[^\n]*\{z\}", body)
    assert not re.search(r"\n\tv(?:p?and|p?blendm)\w*\t", body)
    assert not re.search(r"\n\tkand\w*\t", body), "rows beyond the border are read elsewhere, no mask says so"


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("row", range(6), ids=lambda n: "-".join(OPERATORS[n]))
def test_outputs_that_pass_by_are_what_the_reference_says(row, column):
    """All outputs of an image are one tile: more than there are registers."""
    (height, width), stride, pad = (((6, 6), 1, 1), ((7, 5), 1, 0), ((9, 7), 2, 1))[column]
    name, dtype = OPERATORS[row]
    for target in targets_in_turn(row, column, 3):
        dag, sketch = window(name, target, dtype, N=2, H=height, W=width, C=37, k=3, stride=stride, pad=pad)
        data = make_inputs(dag, 0, "normal")
        for values in (tile(sketch, 7, 7, 1), tile(sketch, 7, 7, 2)):
            check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
def test_what_follows_is_done_with_each_output_that_passes(target):
    x, w = te.placeholder((9, 9, 37), name="X"), te.placeholder((3, 3, 37), name="W")
    bias, kh, kw = te.placeholder((37,), name="bias"), te.reduce_axis(3, name="kh"), te.reduce_axis(3, name="kw")

    def sums(oh, ow, c):
        return te.sum(x[oh + kh, ow + kw, c] * w[kh, kw, c], axis=[kh, kw])

    y = te.compute((7, 7, 37), sums, name="Y")
    dag = collapse(
        ComputeDAG([te.compute((7, 7, 37), lambda oh, ow, c: te.max(y[oh, ow, c] + bias[c], 0.0), name="Z")])
    )
    sketch = sketches(dag, target, 1)[0]
    values = tile(sketch, 7, 7, 2)
    data = make_inputs(dag, 0, "normal")
    check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("pad", "products"), [(1, 19 * 19), (0, 9 * 25)])
def test_a_whole_image_passes_by_without_spills(pad, products):
    """49 outputs in 32 registers; what lies beyond the border is not multiplied, as conditions outside of tiles do."""
    target = parse_target("llvm -mcpu=znver4")
    lanes = target.vector_bytes // 4
    _, sketch = window("dep", target, N=1, C=lanes, k=3, stride=1, pad=pad, H=7, W=7)
    assembly = emit_assembly(build(sketch.state, target, 1, tile(sketch, 7, 7, 1)).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    assert not re.search(r"vmov\w+\t%zmm\d+, [^\n]*\(%rsp", body), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd|\n\tvmulps", body)) == products
    reads = re.findall(r"\n\tv(?:movups|fmadd\w+|mulps)\t[^\n%]*\(", body)
    assert len(reads) <= 49 + 9, "each element of X and of W once"


@pytest.mark.parametrize(
    ("rows", "columns", "steps", "stride"),
    [(7, 7, 3, 1), (4, 6, 3, 1), (7, 7, 3, 2), (3, 7, 2, 1), (1, 7, 3, 1), (2, 9, 3, 1), (2, 2, 3, 1), (9, 2, 3, 2)],
)
def test_registers_of_outputs_that_pass_by_in_closed_form(rows, columns, steps, stride):
    target = parse_target("llvm -mcpu=znver4")
    _, sketch = window("dep", target, N=1, C=16, k=3, stride=stride, pad=0, H=32, W=32)
    values = tile(sketch, rows, columns, 1, steps)
    (update,) = (s for s in analyse(lower(sketch.state)).statements if s.updates and s.accumulators)
    (found,) = Program([update.registers(16, target)], tuple(values))(np.array([list(values.values())]))[:, 0]
    alive = [begun(rows, columns, stride, by_columns) for by_columns in (False, True)]
    assert found == (min(alive) if steps == 3 else rows * columns)


def begun(rows: int, columns: int, stride: int, by_columns: bool) -> int:
    """The outputs of a tile that have begun and are not complete, at most, where the input is swept in this order."""
    taps = [(oh, ow, kh, kw) for oh in range(rows) for ow in range(columns) for kh in range(3) for kw in range(3)]
    at = [(oh * stride + kh, ow * stride + kw) for oh, ow, kh, kw in taps]
    order = sorted(range(len(taps)), key=lambda n: at[n][::-1] if by_columns else at[n])
    spans = {}
    for n, tap in enumerate(order):
        first, _ = spans.get(taps[tap][:2], (n, n))
        spans[taps[tap][:2]] = first, n
    elements = {n: at[tap] for n, tap in enumerate(order)}
    return max(
        sum(elements[a] == here or elements[b] == here or a < n < b for a, b in spans.values())
        for n, here in elements.items()
    )


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize(("rows", "columns", "stride"), [(1, 7, 1), (2, 8, 1), (8, 2, 1), (1, 9, 2), (3, 7, 2)])
def test_few_registers_are_swept_along_the_short_side_of_a_tile(rows, columns, stride):
    """Nine weights, the outputs that have begun and the element that passes, all in 16 registers."""
    target = parse_target("llvm -mcpu=haswell")
    size = {"H": (rows - 1) * stride + 3, "W": (columns - 1) * stride + 3}
    _, sketch = window("dep", target, N=1, C=8, k=3, stride=stride, pad=0, **size)
    assembly = emit_assembly(build(sketch.state, target, 1, tile(sketch, rows, columns, 1)).ir, target)
    body = assembly[: assembly.index(".size\tkernel.nest0")]
    reads = re.findall(r"\n\tv(?:movups|fmadd\w+|mulps)\t[^\n%]*\(", body)
    assert len(reads) <= size["H"] * size["W"] + 9, "each element of X and of W once"
    assert not re.search(r"vmov\w+\t%ymm\d+, [^\n]*\(%rsp", body), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd|\n\tvmulps", body)) == 9 * rows * columns


@pytest.mark.parametrize(("mcpu", "channels", "once"), [("haswell", 96, True), ("haswell", 1024, False)])
def test_tiles_whose_half_lines_crowd_keep_the_order_of_their_loops(mcpu, channels, once):
    target = parse_target(f"llvm -mcpu={mcpu}")
    _, sketch = window("dep", target, N=1, C=channels, k=3, stride=1, pad=0, H=3, W=9)
    text = build(sketch.state, target, 1, tile(sketch, 1, 7, 1)).ir
    products = re.findall(r"call <8 x float> @llvm.fma.v8f32|fmul <8 x float>", text)
    assert len(products) == 9 * 7
    assert ("fmul <8 x float>" in text) == once, "the first product of an output that passes by is stored"


@pytest.mark.parametrize(
    ("name", "combined"), [("dep", "call <8 x float> @llvm.fma.v8f32"), ("max_pool2d", r"fcmp o\w\w <8 x float>")]
)
@pytest.mark.parametrize(("rows", "columns"), [(2, 7), (2, 2)])
def test_the_first_term_is_stored_although_data_are_asked_for_before_it(name, combined, rows, columns):
    """Of outputs that pass by, and of those that all have a register."""
    target = parse_target("llvm -mcpu=haswell")
    _, sketch = window(name, target, N=1, H=114, W=114, C=32, k=3, stride=1, pad=0)
    text = build(sketch.state, target, 1, tile(sketch, rows, columns, 1)).ir
    assert "call void @llvm.prefetch" in text
    assert len(re.findall(combined, text)) == 8 * rows * columns


@pytest.mark.skipif(host_arch() != "x86_64", reason="reads x86 assembly")
def test_what_does_not_fit_is_loaded_in_every_step_and_not_kept_on_the_stack():
    target = parse_target("llvm -mcpu=haswell")
    _, sketch = window("dep", target, N=1, H=10, W=16, C=32, k=3, stride=1, pad=0)
    values = tile(sketch, 2, 7, 1)
    values[next(p for p in values if p.endswith("kh.u"))] = 1
    assembly = emit_assembly(build(sketch.state, target, 1, values).ir, target)
    assert not re.search(r"vmov\w+\t%ymm\d+, [^\n]*\(%rsp", assembly), "nothing is spilled"
    assert len(re.findall(r"\n\tvfmadd\w+\t[^\n%]*\(", assembly)) == 3 * 14, "three steps, each with its own loads"


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.mcpu)
@pytest.mark.parametrize("name", ["dep", "max_pool2d"])
@pytest.mark.parametrize(("rows", "columns", "stride"), [(2, 8, 1), (4, 4, 2)])
def test_tiles_swept_along_either_side_are_what_the_reference_says(name, rows, columns, stride, target):
    dag, sketch = window(name, target, N=1, H=16, W=19, C=29, k=3, stride=stride, pad=1)
    data = make_inputs(dag, 0, "normal")
    values = tile(sketch, rows, columns, 2)
    check_outputs(dag, data, run(build(sketch.state, target, 1, values), dag, data, target), f"{values}")


def test_a_tile_that_does_not_fit_keeps_the_order_of_its_loops():
    """Nine vectors of W, or the outputs of all others: whatever needs more registers than there are is not sorted."""
    for rows, columns in ((2, 2), (5, 14)):
        dag, sketch = window("dep", HOST, N=1, H=7, W=16, C=16, k=3, stride=1, pad=0)
        values = tile(sketch, rows, columns, 1)
        data = make_inputs(dag, 0, "integers")
        check_outputs(dag, data, run(build(sketch.state, HOST, 1, values), dag, data, HOST), f"{values}")
