"""Networks as shared libraries, called from C."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autosched.artifacts.weights_file import TESTED_FEATURES
from autosched.errors import UsageError
from autosched.executor.compile_graph import compile_graph
from autosched.executor.model import Model
from autosched.graph.graph import Graph, Node, Value

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

MAIN = """
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(int argc, char **argv) {
    static float x[AUTOSCHED_NET_SIZE_x], y[AUTOSCHED_NET_SIZE_y], y2[AUTOSCHED_NET_SIZE_t];
    const void *weights = autosched_net_map(argv[argc - 1]);
    void *workspace = aligned_alloc(64, AUTOSCHED_NET_WORKSPACE_BYTES);
    if (weights == NULL) return errno == EINVAL ? 3 : errno == EBADMSG ? 5 : errno == ENOENT ? 6 : 7;
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
    assert [path.name for path in paths] == ["net.so", "net.h", "net.safetensors"]
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
    done = subprocess.run([main, folder / "net.safetensors"], input=x.tobytes(), capture_output=True, check=True)
    found = np.frombuffer(done.stdout, "float32")
    np.testing.assert_array_equal(found, np.concatenate([y.reshape(-1) for y in net(x)]))

    whole = (folder / "net.safetensors").read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")
    damaged = {
        "of another network": (whole.replace(b'"digest": "', b'"digest": "0')[: len(whole)], 3),
        "truncated": (whole[:-1], 3),
        "empty": (b"", 3),
        "one bit": (whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:], 5),
        "two words": (whole[:head] + whole[head + 8 : head + 16] + whole[head : head + 8] + whole[head + 16 :], 5),
    }
    for name, (content, code) in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        done = subprocess.run([main, path], input=x.tobytes(), capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (code, b""), name
    done = subprocess.run([main, tmp_path / "missing"], input=x.tobytes(), capture_output=True, check=False)
    assert done.returncode == 6


def test_tools_read_the_weights(exported: tuple[Model, Path]) -> None:
    net, folder = exported
    content = (folder / "net.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    facts = entries.pop("__metadata__")
    begin, end = entries.pop("packed")["data_offsets"]
    assert not entries
    assert facts["target"] == net.device.target.fingerprint
    assert (8 + length) % 64 == 0
    assert (8 + length + end, begin) == (len(content), 0)
    assert content[8 + length :][: net.block.nbytes] == net.block.tobytes()


def test_another_processor_is_refused(exported: tuple[Model, Path]) -> None:
    """What the header asks the processor for is what the library was made for."""
    net, folder = exported
    text = (folder / "net.h").read_text()
    for name in TESTED_FEATURES:
        asked = f'__builtin_cpu_supports("{name}")' in text
        assert asked == (net.device.target.arch == "x86_64" and net.device.target.has(name))


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


UNLOAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
typedef int network(const float *, float *, const void *, void *);
static float x[2][SIZE], y[2][SIZE];
static void *weights, *workspace[2];
static int threads(void) { /* of this process */
    char line[256];
    int n = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f)) sscanf(line, "Threads: %d", &n);
    fclose(f);
    return n;
}
static void call(network *f, int n) {
    if (f(x[n], y[n], weights, workspace[n]) != 0) exit(10);
}
int main(int argc, char **argv) { /* FIRST.so FUNCTION SECOND.so FUNCTION STEPS */
    void *lib[2] = {dlopen(argv[1], RTLD_NOW), dlopen(argv[3], argv[5][0] == 'g' ? RTLD_LAZY | RTLD_GLOBAL : RTLD_NOW)};
    network *f[2];
    void (*shutdown)(void);
    if (!lib[0] || !lib[1]) return 11;
    for (int n = 0; n < 2; n++) {
        f[n] = (network *)dlsym(lib[n], argv[2 * n + 2]);
        workspace[n] = aligned_alloc(64, 1 << 20);
    }
    weights = aligned_alloc(64, 1 << 20);
    memset(weights, 0, 1 << 20);
    shutdown = (void (*)(void))dlsym(lib[0], "autosched_pool_shutdown");
    for (const char *s = argv[5]; *s; s++) {
        if (*s == '0' || *s == '1') call(f[*s - '0'], *s - '0');
        if (*s == 's') shutdown();
        if (*s == 'a' || *s == 'b') if (dlclose(lib[*s - 'a'])) return 12;
        if (*s == 'p' && threads() < 2) return 13; /* a worker is there */
        if (*s == 'q' && threads() != 1) return 14;
        if (*s == 'f') { /* the rest by a child, then by this process */
            int status;
            if (fork() != 0) {
                if (wait(&status) < 0 || status) return 15;
                if (threads() < 2) return 16;
            }
        }
    }
    usleep(20000); /* idle workers would run on in code that is gone */
    return 0;
}
"""


@pytest.mark.parametrize(
    "steps",
    [
        "0pa", "0psqa", "0ps0paq", "01pabq", "01pbaq", "sqa", "0fa", "0f0a", "0fsq0paq", "01f1ba", "g01pabq", "g10pbaq",
        "g1b0a",
    ],
)  # fmt: skip
def test_a_library_that_is_unloaded_leaves_no_thread_behind(unload: Path, steps: str) -> None:
    """Calls of two libraries (0, 1), shutdown (s), dlclose (a, b) and fork (f) in many orders; p: workers idle, q: none
    is left. Threads that stood in code that was gone ended the program by signal 11."""
    words = [unload / "main", unload / "one.so", "autosched_one", unload / "two.so", "autosched_two", steps]
    assert subprocess.run(words, check=False, timeout=60).returncode == 0


@pytest.fixture(scope="module")
def unload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that unloads libraries, and two of a network whose kernel runs on two threads."""
    folder = tmp_path_factory.mktemp("unload")
    shapes = {"x": (512, 128), "w": (64, 128), "y": (512, 64)}
    table = {name: Value(name, shape, "float32") for name, shape in shapes.items()}
    constants = {"w": np.ones(shapes["w"], "float32")}
    net = compile_graph(Graph(("x",), ("y",), (Node("linear", ("x", "w"), ("y",)),), table, constants), threads=2)
    for name in ("one.so", "two.so"):
        net.export(folder / name)
    assert "void autosched_pool_shutdown(void);" in (folder / "one.h").read_text()
    (folder / "main.c").write_text(UNLOAD.replace("SIZE", str(512 * 128)))
    words = ("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
    subprocess.run([*words, "-o", folder / "main", folder / "main.c", "-ldl", "-lpthread"], check=True)
    return folder
