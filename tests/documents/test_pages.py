"""The pages: commands are accepted, names exist, links lead somewhere, Python blocks run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from autosched.artifacts.kernel import Deployable, header_text
from autosched.cli.main import VERBS, build_parser
from autosched.codegen.source import KernelSource
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph, Node, Value
from autosched.runtime.spec import ArraySpec
from autosched.target import parse_target
from tests.documents.pages import PAGES, ROOT, Page
from tests.graph.gguf.decoders import Decoder
from tests.helpers import python

README, GUIDE, ARCHITECTURE, CHANGELOG = (
    Page(ROOT / name) for name in ("README.md", "autosched/GUIDE.md", "autosched/README.md", ".github/CHANGELOG.md")
)
MAX_README_BYTES = 8_000
MARK = "<!-- run by .ci/run -->\n```\n"
OPTION = re.compile(r"(?<= )--[\w-]+")
MODULES = r"python -m ((?:experiments|tests)[\w.]*)"
# Long searches are cut short, and what is for an NVIDIA GPU runs on an OpenCL device.
CUTS = {"trials=64": "trials=2", "1024": "64", '"cuda"': '"opencl"'}


def wrong_ones(found: str, is_right: Callable[[Page, str], bool]) -> list[str]:
    """Of all pages' `found`, those that are not right, with their pages; there have to be some to look at."""
    cases = [(page, one) for page in PAGES for one in dict.fromkeys(getattr(page, found))]
    assert cases
    return [f"{page.name}: {one}" for page, one in cases if not is_right(page, one)]


# The README


def test_two_commands_are_marked_and_come_first():
    lines = [line for _, content in README.blocks for line in content.splitlines()]
    assert README.text.count(MARK) == 2
    assert [line.split()[0] for line in lines[:2]] == ["pip", "python"]
    assert all(MARK + line + "\n" in README.text for line in lines[:2])


def test_the_readme_is_short():
    assert len(README.text.encode()) <= MAX_README_BYTES


def test_every_verb_is_in_the_table():
    listed = [re.match(r"`autosched (\w+)", cells[0]) for cells in README.rows("command")]
    assert sorted(match[1] for match in listed if match) == sorted(VERBS)


def test_every_page_can_be_reached():
    """From the README, by links."""
    reached, waiting = set(), [README.path]
    while waiting:
        path = waiting.pop()
        if path.is_dir():
            path = path / "README.md"
        if path.suffix == ".md" and path.is_file() and path not in reached:
            reached.add(path)
            waiting += [(path.parent / link.split("#")[0]).resolve() for link in Page(path).links]
    assert {page.path for page in PAGES} == reached


# What pages name


@pytest.mark.parametrize("line", sorted({c for page in PAGES for c in page.commands if c.startswith("autosched ")}))
def test_commands_are_accepted(line):
    words = shlex.split(line)
    assert build_parser().parse_args(words[1:]).verb == words[1]


def test_commands_in_sentences_are_of_verbs_and_options():
    spans = {s for p in PAGES for s in p.spans if re.match(r"autosched [a-z]", s)}
    assert spans
    for span in spans:
        assert span.split()[1] in VERBS, span
        assert not [option for option in OPTION.findall(span) if f'"{option}"' not in sources("autosched/cli")], span


def test_modules_that_are_run_exist_and_have_the_options():
    """Their `--help` is not run: it imports what they import, a second or more for each."""
    lines = {c for page in PAGES for c in page.commands if re.match(MODULES, c)}
    assert lines
    for line in lines:
        (module,) = re.findall(MODULES, line)
        spec = find_spec(module)
        assert spec is not None, line
        assert spec.submodule_search_locations is None or find_spec(f"{module}.__main__"), line
        known = sources("experiments" if module.startswith("experiments") else "/".join(module.split(".")[:2]))
        assert not [option for option in OPTION.findall(line) if f'"{option}"' not in known], line


@cache
def sources(folder: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def repository() -> tuple[str, ...]:
    """All files and folders, as `/folder/file` and `/folder/`."""
    folders = ("autosched", "search_spaces", "cost_model", "experiments", "tests", ".github", ".ci")
    inner = [path for folder in folders for path in (ROOT / folder, *(ROOT / folder).rglob("*"))]
    paths = [path for path in (*ROOT.glob("*"), *inner) if "__pycache__" not in path.parts]
    return tuple(f"/{path.relative_to(ROOT)}" + "/" * path.is_dir() for path in paths)


def test_files_that_are_named_exist():
    """From the top, or as the end of a path: a table that has named a folder goes on within it."""
    assert not wrong_ones("files", lambda page, one: any(path.endswith(f"/{one}") for path in repository()))


def test_files_that_commands_name_exist():
    assert not wrong_ones("operands", lambda page, one: (ROOT / one).exists())


def leads_somewhere(page: Page, link: str) -> bool:
    place, _, anchor = link.partition("#")
    target = (page.path.parent / place).resolve() if place else page.path
    return target.exists() and (not anchor or anchor in Page(target).anchors)


def test_links_lead_somewhere():
    assert not wrong_ones("links", leads_somewhere)


@cache
def defined(path: Path) -> set[str]:
    """The functions, classes, fields and variables that a module defines, whoever holds them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign(targets=targets):
                names |= {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


PLACED = re.compile(r"`(\w+)`\s(?:of|in)\s`([\w/.]+\.py)`")


def test_names_are_in_the_files_that_are_named_with_them():
    placed = {found for page in PAGES for found in PLACED.findall(page.prose)}
    assert placed
    for name, place in placed:
        files = [path for path in repository() if path.endswith(f"/{place}")]
        assert any(name in defined(ROOT / path[1:]) for path in files), f"{name} in {place}"


def test_words_of_the_glossary_are_where_it_says():
    for word, meaning, where in ARCHITECTURE.rows("word"):
        place, name = re.fullmatch(r"`([\w/.]+)`: `(\w+)`", where).groups()
        assert meaning, word
        assert name in defined(ROOT / place), word


def test_the_glossary_is_in_order():
    words = [row[0].lower() for row in ARCHITECTURE.rows("word")]
    assert len(words) > 50
    assert words == sorted(set(words))


def resolved(name: str) -> object:
    """The module, or the name in a module, that a dotted name stands for; None where nothing does."""
    module, _, attribute = name.rpartition(".")
    for wanted, within in ((name, ""), (module, attribute)):
        try:
            found = importlib.import_module(wanted)
        except ModuleNotFoundError:
            continue
        return getattr(found, within, None) if within else found
    return None


def test_new_names_exist_and_old_ones_do_not():
    rows = [[cell.strip("`") for cell in row] for row in CHANGELOG.rows("before")]
    assert rows
    assert not [before for before, _ in rows if resolved(before) is not None]
    assert not [now for _, now in rows if resolved(now) is None]


# What pages show

MODEL = '"model.gguf"'  # which blocks load
PYTHON = [page for page in PAGES if page.python]


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path):
    """One after the other, as they are read. Without an OpenCL device only the library's names are looked up in those
    that are for a GPU."""
    for_gpus = [] if has_opencl() else [block for block in page.python if '"cuda"' in block]
    for block in for_gpus:
        names = re.findall(r"\bat\.(\w+)", block)
        assert names
        assert all(resolved(f"autosched.{name}") is not None for name in names)
    text = "\n".join(block for block in page.python if block not in for_gpus)
    for long, short in CUTS.items():
        text = text.replace(long, short)
    if MODEL in text:
        pytest.importorskip("gguf")
        text = text.replace(MODEL, repr(str(Decoder().write(tmp_path / "model.gguf"))))
    file = tmp_path / "blocks.py"
    file.write_text(text, encoding="utf-8")
    done = python(file, XDG_DATA_HOME=str(tmp_path / "data"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    if page == README:
        assert re.search(r"[\d.]+ us, \d+ GFLOP/s, record \d+", done.stdout)


@cache
def has_opencl() -> bool:
    """Asked in another process, which may load a driver."""
    probe = "import pyopencl as cl; assert any(p.get_devices() for p in cl.get_platforms())"
    return find_spec("pyopencl") is not None and python("-c", probe).returncode == 0


C = [content for page in PAGES for language, content in page.blocks if language == "c"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("block", C)
def test_c_blocks_compile_with_the_header_that_they_include(block, tmp_path):
    (include,) = re.findall(r'#include "\w+\.h".*', block)
    (stem,) = re.findall(r'"(\w+)\.h"', include)
    if stem.startswith("autosched_"):
        a, b, c = (ArraySpec(letter, (4, 4), "float32") for letter in "ABC")
        name = stem.removeprefix("autosched_")
        kernel = Deployable(name, name, KernelSource(name, "", 64, 1), parse_target("cpu"), (a, b), (c,))
        (tmp_path / f"{stem}.h").write_text(header_text(kernel))
        body = block.split("\n", 1)[1]
        text = f"#include <stdlib.h>\n{include}\nvoid use(const float *A, const float *B, float *C) {{\n{body}}}\n"
    else:
        values = {name: Value(name, (3,), "float32") for name in "xy"}
        network = Graph(("x",), ("y",), (Node("relu", ("x",), ("y",)),), values)
        compile_graph(network, threads=1).export(tmp_path / f"{stem}.so")
        text = block
    command = [
        "cc",
        "-std=c11",
        *re.findall(r"-D\w+=\w+", include),
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        "-x",
        "c",
        "-I",
        str(tmp_path),
        "-",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_pages_are_found():
    assert {README.path, GUIDE.path, ARCHITECTURE.path, CHANGELOG.path} <= {page.path for page in PAGES}
    assert {README, GUIDE} <= set(PYTHON)
    assert len(C) == 2
