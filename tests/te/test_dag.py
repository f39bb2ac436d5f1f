"""`ComputeDAG`: order, names, flops, the content hash, and what it refuses as an output."""

import numpy as np
import pytest

from autosched import te
from autosched.errors import ExpressionError
from autosched.ir.expr import Load
from autosched.te.reference.plain import evaluate_plainly
from autosched.te.tensor import TensorLoad, postorder


def matmul(m=4, n=3, k=5, dtype="float32", names=("A", "B", "C", "i", "k")):
    a = te.placeholder((m, k), dtype, name=names[0])
    b = te.placeholder((k, n), dtype, name=names[1])
    r = te.reduce_axis(k, name=names[4])
    return te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name=names[2])


def relu(x, name="D"):
    return te.compute(x.shape, lambda *i: te.max(x[i], 0.0), name=name)


def test_parts_of_a_dag():
    dag = te.ComputeDAG(relu(matmul()))
    assert [t.name for t in dag.inputs] == ["A", "B"]
    assert [s.name for s in dag.stages] == ["C", "D"]
    assert [t.name for t in dag.outputs] == ["D"]
    assert list(dag.tensors) == ["A", "B", "C", "D"]
    assert dag.consumers("A") == dag.consumers("B") == (dag.stage("C"),)
    assert dag.consumers("C") == (dag.stage("D"),)
    assert dag.consumers("D") == ()
    assert dag.producer("C") is dag.stage("C")
    assert dag.producer("A") is None
    assert dag.is_output(dag.stage("D"))
    assert not dag.is_output(dag.stage("C"))
    assert [str(load) for load in dag.reads(dag.stage("C"))] == ["A[i, k]", "B[k, j]"]
    assert [t.name for t in dag.stage("C").inputs] == ["A", "B"]
    assert sorted(dag.graph.edges) == [("A", "C"), ("B", "C"), ("C", "D")]
    assert dag.graph.nodes["C"]["op"] is dag.stage("C")
    assert repr(dag) == "<ComputeDAG (A, B) -> (D), 2 stages>"
    assert repr(dag.stages) == "(<stage C[i, j] reduced over [k]>, <stage D[i0, i1]>)"


def test_only_plain_loads_remain():
    for op in te.ComputeDAG(relu(matmul())).stages:
        loads = [n for n in postorder(op.body) if isinstance(n, Load)]
        assert loads
        assert not any(isinstance(n, TensorLoad) for n in loads)
        assert {n.buffer for n in loads} == {t.name for t in op.inputs}


def test_inputs_are_in_the_order_of_their_creation():
    first, second = te.placeholder((2,), name="Z"), te.placeholder((2,), name="A")
    dag = te.ComputeDAG(te.compute((2,), lambda i: second[i] - first[i]))
    assert [t.name for t in dag.inputs] == ["Z", "A"]


def test_an_output_may_be_read_by_another_stage():
    c = matmul()
    dag = te.ComputeDAG((relu(c), c))
    assert [t.name for t in dag.outputs] == ["D", "C"]
    assert [s.name for s in dag.stages] == ["C", "D"]


def test_producers_come_first_in_a_diamond():
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((4,), lambda i: b[i] * 2.0, name="C")
    d = te.compute((4,), lambda i: b[i] + c[i], name="D")
    dag = te.ComputeDAG((d, b))
    assert [s.name for s in dag.stages] == ["B", "C", "D"]
    assert [s.name for s in dag.consumers("B")] == ["C", "D"]


def test_a_chain_of_many_stages():
    x = te.placeholder((2,), name="X")
    for _ in range(1200):
        x = relu(x, "R")
    dag = te.ComputeDAG(x)
    assert len(dag.stages) == 1200
    assert [s.name for s in dag.stages[:3]] == ["R", "R_1", "R_2"]


def test_renaming_avoids_names_that_users_chose():
    a = te.placeholder((2,), name="A")
    b = relu(relu(relu(a, "R"), "R"), "R_1")
    assert [s.name for s in te.ComputeDAG(b).stages] == ["R", "R_2", "R_1"]


def test_names_of_several_outputs_are_unique_too():
    a = te.placeholder((4, 2), name="M.v0")
    k = te.reduce_axis(2, name="k")
    m = te.compute((4,), lambda i: te.argmax(a[i, k], axis=k), name="M")
    dag = te.ComputeDAG(m)
    assert list(dag.tensors) == ["M.v0", "M_1.v0", "M_1.v1"]
    assert dag.consumers("M.v0") == dag.stages
    assert dag.consumers("M_1") == ()


def test_consumers_of_a_stage_with_several_outputs():
    a = te.placeholder((4, 2), name="A")
    k = te.reduce_axis(2, name="k")
    _, value = te.compute((4,), lambda i: te.argmax(a[i, k], axis=k), name="M")
    dag = te.ComputeDAG(relu(value))
    assert dag.consumers("M") == dag.consumers("M.v1") == (dag.stage("D"),)
    assert dag.consumers("M.v0") == ()


def test_linking_twice_changes_nothing():
    a, b = te.placeholder((2,), name="A"), te.placeholder((2,), name="A")
    dag = te.ComputeDAG(te.compute((2,), lambda i: a[i] - b[i]))
    again = te.ComputeDAG(dag.outputs)
    assert list(again.tensors) == list(dag.tensors)
    assert again.stages[0].body == dag.stages[0].body
    assert again.content_hash == dag.content_hash


def elementwise(fn, dtype="float32"):
    a = te.placeholder((10,), dtype, name="A")
    return te.compute((10,), lambda i: fn(i, a))


def escaping(i, a, steps=20):
    """Without end if both branches of each step are looked through for themselves."""
    z = a[i]
    for _ in range(steps):
        z = te.select(z < 2.0, z * z + a[i], z)
    return z


FLOPS = {
    "multiply-add": (lambda: matmul(4, 3, 5), 2 * 4 * 3 * 5),
    "relu": (lambda: relu(matmul(4, 3, 5)), 120 + 12),
    "copy": (lambda: elementwise(lambda i, a: a[i]), 0),
    "call": (lambda: elementwise(lambda i, a: te.exp(-a[i])), 20),
    "index arithmetic": (lambda: elementwise(lambda i, a: a[(i + 3) % 10]), 0),
    "select": (lambda: elementwise(lambda i, a: te.select(i + 1 < 5, a[i] * 2.0 + 1.0, a[i] - 1.0)), 20),
    "data condition": (lambda: elementwise(lambda i, a: te.select(a[i] > 0.0, a[i] * 2.0, 0.0)), 20),
    "shared": (lambda: elementwise(lambda i, a: te.exp(a[i]) * te.exp(a[i])), 20),
    "shared by branches": (
        lambda: elementwise(lambda i, a: te.select(i < 5, te.exp(a[i]), te.exp(a[i]) * 2.0) + te.exp(a[i])),
        30,
    ),
    "steps while a condition of them holds": (lambda: elementwise(escaping), 10 * 20 * 3),
    "cast": (lambda: elementwise(lambda i, a: te.cast(a[i], "int32")), 0),
    "logic": (lambda: elementwise(lambda i, a: te.select(te.all(a[i] > 0.0, a[i] < 1.0), 1.0, 0.0)), 20),
    "integers": (lambda: elementwise(lambda i, a: a[i] // 3 + a[i] % 3, "int32"), 30),
}


@pytest.mark.parametrize("case", FLOPS)
def test_flops(case):
    build, expected = FLOPS[case]
    assert te.ComputeDAG(build()).flops == expected


def hash_of(output):
    return te.ComputeDAG(output).content_hash


def test_hash_ignores_names():
    assert hash_of(matmul()) == hash_of(matmul(names=("W", "X", "Y", "p", "q")))
    assert hash_of(relu(matmul())) == hash_of(relu(matmul(names=("D", "C", "B", "A", "i")), name="Z"))
    a = te.placeholder((2, 3), name="A")
    assert hash_of(te.compute((2, 3), lambda i, j: a[i, j] * 2.0)) == hash_of(
        te.compute((2, 3), lambda j, i: a[j, i] * 2.0)
    )


def reduced(fn, **kwargs):
    a = te.placeholder((4, 5), name="A")
    k = te.reduce_axis(5)
    return te.compute((4,), lambda i: fn(a[i, k], axis=k), **kwargs)


def test_hash_tells_different_workloads_apart():
    c = matmul()
    hashes = [
        hash_of(x)
        for x in (
            c,
            matmul(m=5),
            matmul(k=6),
            matmul(dtype="float64"),
            relu(c),
            (relu(c), c),
            (c, relu(c)),
            te.view(c, (3, 4)),
            te.view(c, (12,)),
            reduced(te.sum),
            reduced(te.max),
            reduced(te.min),
            reduced(te.prod),
            elementwise(lambda i, a: a[i] + 1.0),
            elementwise(lambda i, a: a[i] + 2.0),
            elementwise(lambda i, a: a[i] - 1.0),
            elementwise(lambda i, a: a[9 - i] + 1.0),
            elementwise(lambda i, a: te.exp(a[i])),
            elementwise(lambda i, a: te.cast(te.exp(a[i]), "float64")),
        )
    ]
    assert len(set(hashes)) == len(hashes)


def test_hash_depends_on_the_order_of_inputs():
    def difference(swap):
        a, b = te.placeholder((4,)), te.placeholder((4,))
        x, y = (b, a) if swap else (a, b)
        return te.compute((4,), lambda i: x[i] - y[i])

    assert hash_of(difference(False)) != hash_of(difference(True))


def test_hash_is_stable():
    """A change of this value orphans every record in every database: bump the version line when it is meant."""
    assert hash_of(matmul()) == "a514f483a3ff4ecd9bcf35e5bdc083b01d23102a03b3a581294de632d9739024"


ZEROS = {
    "x - x": lambda x, y: x - x,
    "sums of the same": lambda x, y: (x + y) - (x + y),
    "x * 0": lambda x, y: x * 0 + y * 0,
    "0 * x": lambda x, y: 0 * x,
    "x mod 1": lambda x, y: te.mod(x, 1),
    "x ^ x": lambda x, y: x ^ x,
    "x & 0": lambda x, y: x & 0,
    "x is not x": lambda x, y: te.cast(te.not_equal(x, x), "int32"),
}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", ZEROS)
def test_what_is_zero_by_algebra_keeps_its_inputs(name, dtype):
    """A caller gives every array that the workload reads."""
    x, y = (te.placeholder((3,), dtype, name) for name in "xy")
    dag = te.ComputeDAG(te.compute((3,), lambda i: ZEROS[name](x[i], y[i])))
    read = {t.name: np.arange(-1, 2).astype(dtype) for t in dag.inputs}
    assert "x" in read
    (zeros,) = evaluate_plainly(dag, read)
    np.testing.assert_array_equal(zeros, [0, 0, 0])


def test_indices_are_simplified_all_the_same():
    x = te.placeholder((3,), name="x")
    dag = te.ComputeDAG(te.compute((3,), lambda i: x[i - i] + x[i * 0]))
    assert str(dag.stages[0].body[0]) == "x[0] + x[0]"


P = te.placeholder((2,), name="P")
Q = relu(P, "Q")

REFUSED = {
    "placeholder": (P, r"the output P is a placeholder, so nothing would be computed; return the result of te.compute"),
    "nothing": (None, r"the operator returned None, a NoneType; return one output tensor"),
    "number": (3.0, r"the operator returned 3.0, a float"),
    "empty": ((), r"the operator returned no tensor"),
    "twice": ((Q, Q), r"the output Q is listed twice"),
    "view and itself": ((Q, te.view(Q, (2, 1))), r"the output Q is listed twice"),
    "mixed": ((Q, 1), r"an output is 1, a int, but must be a tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_outputs(case):
    outputs, message = REFUSED[case]
    with pytest.raises(ExpressionError, match=message):
        te.ComputeDAG(outputs)


def test_unknown_stage():
    with pytest.raises(ExpressionError, match="there is no stage 'X'; the stages are Q"):
        te.ComputeDAG(Q).stage("X")
