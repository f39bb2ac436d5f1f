"""Networks as shared libraries, called from C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.graph.graph import Graph, Node, Value
from autosched.network.model import Model, compile_graph

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(int argc, char **argv) {
    static float x[7 * 13], y[7 * 5], y2[7 * 13];
    const void *weights = autosched_net_map(argv[argc - 1]);
    void *workspace = aligned_alloc(64, (AUTOSCHED_NET_WORKSPACE_BYTES + 63) / 64 * 64 + 64);
    if (weights == NULL) return 3;
    if (fread(x, 4, 7 * 13, stdin) != 7 * 13) return 2;
    for (int i = 0; i < 2; i++)
        if (autosched_net(x, y, y2, weights, workspace) != 0) return 4;
    fwrite(y, 4, 7 * 5, stdout);
    fwrite(y2, 4, 7 * 13, stdout);
    return 0;
}
"""


def model() -> Model:
    rng = np.random.default_rng(0)
    values = [Value("x", (7, 13), "float32"), Value("h", (7, 13), "float32"), Value("y", (7, 5), "float32")]
    values += [Value("u", (13, 13), "float32"), Value("w", (5, 13), "float32"), Value("t", (7, 13), "float32")]
    constants = {"u": rng.standard_normal((13, 13), "float32"), "w": rng.standard_normal((5, 13), "float32")}
    nodes = (Node("linear", ("x", "u"), ("h",)), Node("tanh", ("h",), ("t",)), Node("linear", ("t", "w"), ("y",)))
    table = {value.name: value for value in values}
    return compile_graph(Graph(("x",), ("y", "t"), nodes, table, constants), threads=2)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    folder = tmp_path_factory.mktemp("exported")
    net = model()
    paths = net.export(folder / "net.so")
    assert [path.name for path in paths] == ["net.so", "net.h", "net.weights"]
    return net, folder


@pytest.mark.parametrize("words", [("cc", "-std=c11"), ("c++", "-x", "c++", "-Wno-deprecated")])
def test_a_c_program_runs_the_network(exported: tuple[Model, Path], tmp_path: Path, words: tuple[str, ...]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    net, folder = exported
    (tmp_path / "main.c").write_text(MAIN)
    flags = ("-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", f"-I{folder}", f"-Wl,-rpath,{folder}")
    main = tmp_path / "main"
    subprocess.run([*words, *flags, "-o", main, tmp_path / "main.c", "-x", "none", folder / "net.so"], check=True)
    x = np.random.default_rng(1).standard_normal((7, 13), "float32")
    done = subprocess.run([main, folder / "net.weights"], input=x.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, "float32")
    np.testing.assert_array_equal(found, np.concatenate([y.reshape(-1) for y in net(x)]))

    other = bytearray((folder / "net.weights").read_bytes())
    other[-1] ^= 1
    for n, content in enumerate([bytes(other), bytes(other[:-1]), b""]):
        path = tmp_path / f"{n}.weights"
        path.write_bytes(content)
        assert subprocess.run([main, path], input=x.tobytes(), capture_output=True, check=False).returncode == 3


def test_two_libraries_in_one_process(exported: tuple[Model, Path], tmp_path: Path) -> None:
    net, folder = exported
    model().export(tmp_path / "second one.so")
    x = np.random.default_rng(2).standard_normal((7, 13), "float32")
    for path, symbol in ((folder / "net.so", "autosched_net"), (tmp_path / "second one.so", "autosched_second_one")):
        function = ctypes.CDLL(str(path))[symbol]
        y, t = np.zeros((7, 5), "float32"), np.zeros((7, 13), "float32")
        scratch = np.zeros(net.arena_bytes + 64, "uint8")
        addresses = [x.ctypes.data, y.ctypes.data, t.ctypes.data, net.block.ctypes.data]
        addresses.append(scratch.ctypes.data + -scratch.ctypes.data % 64)
        assert function(*map(ctypes.c_void_p, addresses)) == 0
        np.testing.assert_array_equal(y, net(x)[0])


def test_the_library_shows_its_function_and_the_pool_alone(exported: tuple[Model, Path]) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    _, folder = exported
    text = subprocess.run(["nm", "-D", "--defined-only", folder / "net.so"], capture_output=True, check=True, text=True)
    names = {line.split()[-1] for line in text.stdout.splitlines()}
    assert "autosched_net" in names
    assert all(name.startswith("autosched_") for name in names)
    assert "autosched_parallel" not in names


def test_the_path_says_what_is_written(exported: tuple[Model, Path], tmp_path: Path) -> None:
    net, _ = exported
    with pytest.raises(UsageError, match=r"ends in \.so, not net\.o"):
        net.export(tmp_path / "net.o")
    assert not list(tmp_path.iterdir())
