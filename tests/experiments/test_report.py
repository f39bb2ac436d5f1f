"""The tables of pages: figures of small made-up files that are known by hand, the marks, and the committed pages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import UsageError
from cost_model.cpu.features import FEATURES, Feature
from cost_model.gpu.features import GPU_FEATURES
from experiments.report import contests, cycles, features, models
from experiments.report.__main__ import PAGES, main
from experiments.report.markdown import lowest, spread, table
from experiments.report.pages import END, blocks_of, rewritten
from experiments.report.results import Results, load
from experiments.report.sections import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "experiments" / "README.md"
HOST = {
    "cpu_model": "Example CPU", "llvm_cpu": "znver9", "vector_bytes": 32, "cores_usable": 4, "date": "2026-01-09T10:00:00+00:00",
    "packages": {"torch": "2.5.0+cpu", "numpy": "2.1.0"},
}  # fmt: skip


def results(name: str = "made_up", **content: Any) -> Results:
    return Results(name, {"schema_version": 1, "host": HOST, **content})


def row(case: str, threads: int = 1, batch: int = 1, limit: str = "arithmetic", **times: float) -> dict[str, Any]:
    """A row of the scoreboard; times in microseconds, the roofline's is 80, ours 100 where none is given."""
    entries = {name.replace("_", "."): {"seconds": us / 1e6} for name, us in {"autosched": 100.0, **times}.items()}
    entries.setdefault("autosched.call", entries["autosched"])
    if "metaschedule" in entries:
        entries["metaschedule"]["tuning_s"] = 60.0
    return {
        "case": case, "workload": case.partition(":")[0], "batch": batch, "threads": threads, "flops": 8_000_000, "level": "L2",
        "date": "2026-01-0" + str(threads), "revision": "abc" + str(threads), "asked_trials": 64, "wrong": 0, "entries": entries,
        "rates": {"peak_gflops": 100.0, "bandwidth": 1e10, "fma_gflops": 90.0}, "roof": {"seconds": 80e-6, "limit": limit},
        "tuning": {"wall_s": 4.0, "search_s": 1.0, "model_s": 0.5, "build_s": 1.5, "check_s": 0.2, "measure_s": 0.4,
                   "first_result_s": 1.5, "best_s": 80e-6, "first_round_ratio": 1.25, "trials_to_95": 3, "seconds_to_95": 2.0},
    }  # fmt: skip


def cells(lines: list[str], first: str) -> list[str]:
    """The cells of the row that begins with `first`, without it."""
    (line,) = [line for line in lines if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


# The scoreboard's files


def test_board_gives_means_losses_and_their_peers() -> None:
    rows = [
        row("gmm:0", torch=200.0, numpy=400.0),  # 2.0, 4.0
        row("gmm:1", torch=50.0),  # 0.5
        row("sfm:0", threads=2, torch=300.0, metaschedule=120.0),  # 3.0, 1.2
        {"case": "sfm:1", "batch": 1, "threads": 2, "error": "no candidate"},
    ]
    lines = contests.board(results(rows=rows))
    one, two = cells(lines, "N=1, 1 thread"), cells(lines, "N=1, 2 threads")
    # cases, disturbed, PyTorch, NumPy, the better of both, MetaSchedule, best, slower, slowest, peak
    assert one[:10] == ["2", "0", "1.00", "4.00 (1 cases)", "1.00", "-", "**1.00**", "1", "`gmm:1` 0.500", "100"]
    assert two[:10] == ["1", "0", "3.00", "-", "3.00", "1.20", "**1.20**", "0", "`sfm:0` 1.200", "100"]
    assert one[10:] == ["2026-01-01", "`abc1`"]
    assert "Slower than a peer: `gmm:1 N=1 t=1` 0.500 (torch)." in lines
    assert lines[-1] == (
        "*From `experiments/results/made_up.json`: Example CPU (`znver9`, 256-bit vectors, 4 cores); "
        "2026-01-01 to 2026-01-02; revisions `abc1` (2 rows), `abc2` (1 rows); 64 trials a case; PyTorch 2.5.0; NumPy 2.1.0.*"
    )


def test_board_where_nobody_is_faster() -> None:
    assert "In no case is a peer faster." in contests.board(results(rows=[row("gmm:0", torch=101.0)]))


def test_headline_has_a_row_for_each_machine_and_setting() -> None:
    first, second = (
        results("a", rows=[row("gmm:0", torch=200.0), row("gmm:0", batch=16, torch=50.0)]),
        results("b", rows=[row("gmm:0", threads=2, torch=150.0, metaschedule=160.0)]),
    )
    lines = contests.headline(first, second)
    assert lines[2:5] == [
        "| `znver9` | N=1, 1 thread | 1 | 0 | **2.00** | 0 | `gmm:0` 2.000 | 0 |",
        "| `znver9` | N=16, 1 thread | 1 | 0 | **0.50** | 1 | `gmm:0` 0.500 | 0 |",
        "| `znver9` | N=1, 2 threads | 1 | 1 | **1.50** | 0 | `gmm:0` 1.500 | 0 |",
    ]
    assert [line for line in lines if "From" in line] == [lines[6], lines[8]]


def test_a_disturbed_case_is_counted_against_the_whole_file() -> None:
    slow = row("gmm:1", batch=16, torch=200.0)
    slow["rates"]["peak_gflops"] = 90.0  # of the 100 that the other batch has
    lines = contests.board(results(rows=[row("gmm:0", torch=200.0), slow]))
    assert cells(lines, "N=1, 1 thread")[1] == "0"
    assert cells(lines, "N=16, 1 thread")[1] == "1"


def test_families_have_mean_and_least() -> None:
    rows = [row("gmm:0", torch=200.0), row("gmm:1", torch=800.0), row("sfm:0", threads=2, torch=300.0)]
    lines = contests.families(results(rows=rows))
    assert cells(lines, "`gmm`") == ["4.00 (2.00)", "-"]
    assert cells(lines, "`sfm`") == ["-", "3.00 (3.00)"]


def test_roofline_by_operator_and_limit() -> None:
    rows = [row("gmm:0", autosched=100.0), row("gmm:1", autosched=80.0), row("sfm:0", limit="memory", autosched=160.0)]
    lines = contests.roofline(results(rows=rows))
    assert cells(lines, "`gmm`") == cells(lines, "**bound by arithmetic**") == ["0.90 (0.80 to 1.00)"]
    assert cells(lines, "`sfm`") == cells(lines, "**bound by memory**") == ["0.50"]
    assert "- N=1, 1 thread: 2 of 3 below 0.85, `sfm:0` 0.50, `gmm:0` 0.80." in lines


def test_roofline_names_no_more_than_the_lowest() -> None:
    rows = [row(f"gmm:{i}", autosched=200.0 + i) for i in range(contests.LOWEST + 1)]
    (line,) = [line for line in contests.roofline(results(rows=rows)) if line.startswith("- ")]
    assert line.startswith("- N=1, 1 thread: 13 of 13 below 0.85, the lowest `gmm:12` 0.38")
    assert "`gmm:0`" not in line


def test_searches_are_medians() -> None:
    late = row("gmm:1", torch=1.0)
    late["tuning"] |= {"wall_s": 8.0, "trials_to_95": 6, "measure_s": 0.8, "best_s": 100e-6}
    late["wrong"] = 2
    lines = contests.searches(results(rows=[row("gmm:0"), late]))
    # seconds, first kernel, trials to 95 %, seconds to 95 %, first round, contest over search, shares of 4 and 8 seconds
    assert cells(lines, "N=1, 1 thread") == [
        "6.0",
        "1.5",
        "4.5",
        "2.0",
        "1.25",
        "1.12 (1.00 to 1.25)",
        "`gmm:0`",
        "0.19",
        "0.09",
        "0.28",
        "0.04",
        "0.10",
    ]
    assert "Wrong results among all trials: 2." in lines


def test_opt_ins_and_compiled() -> None:
    one = row("c2d:3", torch=300.0, autosched_weights=50.0, torch_prepacked=75.0, autosched_winograd=200.0)
    lines = contests.opt_ins(results(rows=[one, row("gmm:0", torch=2.0)]))
    assert cells(lines, "weights") == ["`c2d:3`", "N=1, 1 thread", "50.0", "torch.prepacked", "75.0", "1.50", "2.00"]
    assert cells(lines, "winograd") == ["`c2d:3`", "N=1, 1 thread", "200.0", "torch", "300.0", "1.50", "0.50"]
    two = row("gmm:2", threads=2, torch=200.0, torch_compile=300.0)
    lines = contests.compiled(results(rows=[two, row("gmm:0", torch=2.0)]))
    assert cells(lines, "`gmm:2`") == ["N=1, 2 threads", "100.0", "200.0", "300.0", "1.50"]
    assert cells(lines, "`gmm:0`")[-1] == "-"


def test_products_beside_the_scoreboard() -> None:
    sizes: dict[str, Any] = {"M": 8, "N": 8, "K": 8}
    ours = row("matmul:8x8x8", numpy=160.0) | {"args": sizes}
    ragged = row("matmul:3x5x7", autosched=80.0) | {"args": {"M": 3, "N": 5, "K": 7}}
    theirs = row("gmm:0", autosched=200.0) | {"args": {"B": 1, **sizes}}
    lines = contests.products(results(rows=[ragged, ours]), results("scoreboard", rows=[theirs]))
    # 80 GFLOP/s: 0.80 of the peak, 0.89 of the loop
    assert cells(lines, "8 x 8 x 8") == ["0.80", "0.89", "0.50", "0.40"]
    assert cells(lines, "3 x 5 x 7") == ["1.00", "1.11", "-", "-"]
    assert [line[:10] for line in lines if line.startswith("| ")][1:] == ["| 8 x 8 x ", "| 3 x 5 x "]


# Cycles and MetaSchedule


def count(case: str, cycles: int, share: float, **more: Any) -> dict[str, Any]:
    return {
        "case": case,
        "batch": 1,
        "cycles": cycles,
        "called": cycles,
        "flops": 1600,
        "share": share,
        "tuning_s": 2.0,
        **more,
    }


def test_cycles_by_operator_and_group() -> None:
    rows = [
        count("gmm:0", 100, 0.9, torch=200), count("gmm:1", 100, 0.8, torch=800), count("sfm:0", 100, 0.1, torch=150),
        {"case": "sfm:1", "error": "broken"},
    ]  # fmt: skip
    lines = cycles.by_operator(results(rows=rows, flops_a_cycle=32.0))
    assert cells(lines, "`gmm`") == ["2", "4.00", "`gmm:0` 2.00", "0.85 (0.80 to 0.90)"]
    assert cells(lines, "**convolutions and products**") == cells(lines, "`gmm`")
    assert cells(lines, "**norms and softmax**") == ["1", "1.50", "`sfm:0` 1.50", "0.10"]
    assert cells(lines, "**all**")[:2] == ["3", "2.88"]  # the cube root of 24
    assert not [line for line in lines if "attention" in line]
    said = "Of 2 convolutions and products 1 are below 0.85 of the loop: `gmm:1` 0.800. The loop does 32.0 operations a cycle."
    assert said in lines


def test_every_benchmark_operator_is_in_one_group() -> None:
    from experiments.scoreboard.bouts import FAMILIES

    assert sorted(family for group in cycles.GROUPS.values() for family in group) == sorted(FAMILIES)


def test_metaschedule_on_three_machines() -> None:
    first = results(
        "a", rows=[row("gmm:0", threads=2, metaschedule=400.0), row("sfm:0", threads=2, metaschedule=100.0)]
    )
    second = results("b", rows=[row("gmm:0", metaschedule=200.0), row("sfm:0", torch=100.0)])
    third = results("c", flops_a_cycle=32.0, rows=[
        count("gmm:0", 100, 0.5, metaschedule={"cycles": 200, "tuning_s": 8.0}), count("nrm:0", 100, 0.5, metaschedule={"reason": "x"}),
    ])  # fmt: skip
    lines = cycles.metaschedule(first, second, third)
    assert lines[0].startswith("| case | `znver9`, N=1, 2 threads | its share of the limit | `znver9`, N=1, 1 thread |")
    assert cells(lines, "`sfm:0`") == ["1.00", "0.80", "-", "-", "-", "-"]
    assert cells(lines, "`gmm:0`") == ["4.00", "0.20", "2.00", "0.40", "2.00", "0.25"]  # 1600 of 200 x 32
    assert cells(lines, "**geometric mean**") == ["2.00", "0.40", "2.00", "0.40", "2.00", "0.25"]
    assert cells(lines, "**geometric mean of kernels at the limit**") == [
        "2.50",
        "1.00",
        "2.50",
        "1.00",
        "4.00",
        "1.00",
    ]
    assert cells(lines, "**median**")[:2] == ["2.50", "0.50"]
    assert cells(lines, "**geometric mean of the 1 cases of all**")[:2] == ["4.00", "0.20"]
    assert cells(lines, "**its tuning time over ours**") == ["15 (15 to 15)", "", "15", "", "4", ""]
    assert "`nrm:0`" not in "".join(lines)


# The search's parts


def session(variant: str, best: float, **more: Any) -> dict[str, Any]:
    """A session that ends at `best` microseconds, by way of twice as long; a call is 1e-3 GFLOP."""
    curve = [[1, 2.0, 2e-6 * best], [5, 4.0, 1e-6 * best]]
    return {
        "variant": variant,
        "seed": 0,
        "curve": curve,
        "wall_s": 9.0,
        "best_s": 1e-6 * best,
        "gflops": 1e3 / best,
        **more,
    }


def test_tuning_curves() -> None:
    settings = {"case": "c2d:3", "shape": [1], "batch": 1, "trials": 64, "threads": 1}
    sessions = [
        session("full", 10.0, peak_gflops=117.4), session("random", 20.0, peak_gflops=116.0),
        {"variant": "full", "seed": 1, "error": "lost"},
    ]  # fmt: skip
    lines = models.tuning(results(settings=settings, sessions=sessions))
    assert cells(lines, "full system") == ["1", "100.0", "100.0 to 100.0", "1.00", "5", "4", "9.0"]
    assert cells(lines, "random sampling") == ["1", "50.0", "50.0 to 50.0", "0.50", "inf", "inf", "9.0"]
    assert "c2d:3, N=1, 1 thread, 64 trials; the peak of FMAs was 117 GFLOP/s." in lines
    assert "the file names no revision" in lines[-1]
    assert "2026-01-09" in lines[-1]


def test_quality_of_the_cost_model() -> None:
    found = {
        "pairwise_accuracy": 0.854, "apart_accuracy": 0.92, "recall_at_30": 0.7, "draft_pairwise_accuracy": 0.8, "close_pairs": 0.25,
        "programs": 1234, "workloads": 5, "repeat_pairwise_accuracy": None, "online_64_pairwise_accuracy": 0.9,
        "online_64_draft_pairwise_accuracy": 0.8, "online_64_recall_at_10": 0.6, "online_64_draft_recall_at_10": 0.4,
    }  # fmt: skip
    lines = models.quality(results(**found))
    assert cells(lines, "model, fitted on other programs of all workloads (5 splits)") == ["0.85", "0.92", "0.70"]
    assert cells(lines, "draft alone") == ["0.80", "-", "-"]
    assert cells(lines, "64") == ["0.90", "0.80", "0.60", "0.40"]
    assert not [line for line in lines if "second measurement" in line]
    assert "1,234 programs of 5 workloads; 0.75 of the pairs are more than 10% apart." in lines


def test_throughput() -> None:
    found = {
        "workload": "conv2d", "draft_per_s": 400_000.4, "ranked_per_s": 3e5, "sampled_per_s": 2e6, "sketches": 15, "candidates": 1000,
        "legal_share": 0.5, "us_per_candidate": {"sample": 0.5, "legality": 1, "draft": 2, "features": 3, "score": 4},
    }  # fmt: skip
    lines = models.throughput(results(**found))
    assert lines[2] == "| 2,000,000 | 400,000 | 300,000 | 0.50 | 1.00 | 2.00 | 3.00 | 4.00 |"
    assert "`conv2d`: 15 sketches, 1,000 candidates, of which 0.50 are legal." in lines


def test_features_that_differ_in_a_number_share_a_row() -> None:
    some = ("access0_bytes", "access1_bytes"), ("into_l1",), ("intensity_1k", "intensity_64k", "other")
    found = [Feature(name, "bytes", f"formula {n}") for n, names in enumerate(some) for name in names]
    assert features.listing(found)[2:] == [
        "| `access*_bytes` (2) | bytes | formula 0 |", "| `into_l1` | bytes | formula 1 |",
        "| `intensity_*k` (2), `other` | bytes | formula 2 |", "", "*6 features.*",
    ]  # fmt: skip


@pytest.mark.parametrize(("lines", "table_of"), [(features.cpu(), FEATURES), (features.gpu(), GPU_FEATURES)])
def test_every_feature_is_counted_once(lines: list[str], table_of: tuple[Feature, ...]) -> None:
    names = [line.split(" | ")[0] for line in lines[2:-2]]
    counted = [int(n or 1) for cell in names for n in re.findall(r"`(?: \((\d+)\))?(?:, |$)", cell)]
    assert sum(counted) == len(table_of)


# Markdown and marks


def test_cells_end_where_they_should() -> None:
    assert table(("a|b", "c"), [("1", "2|3")]) == ["| a\\|b | c |", "|---|---|", "| 1 | 2\\|3 |"]
    with pytest.raises(ValueError, match="a row has 1 cells, the header 2"):
        table(("a", "b"), [("1",)])


def test_spread_and_lowest() -> None:
    assert [spread(values) for values in ([], [0.5], [1.0, 3.0, 2.0])] == ["-", "0.50", "2.00 (1.00 to 3.00)"]
    assert lowest({"a": 2.0, "b": 1.0, "c": 3.0}, 2, 1) == "`b` 1.0, `a` 2.0"


TEXT = "# Title\n\n<!-- generated: one -->\nold\n<!-- end -->\nwords\n\n<!-- generated: two -->\n\ntwo\n\n<!-- end -->\nlast\n"


def test_only_what_is_between_marks_changes() -> None:
    new, differences = rewritten(TEXT, "page.md", lambda name: [name])
    assert new == TEXT.replace("old", "\none\n")
    assert [(d.block.name, d.here, d.made) for d in differences] == [("one", "old", "")]
    assert rewritten(new, "page.md", lambda name: [name]) == (new, [])


def test_the_first_differing_line_is_named() -> None:
    made = {"one": ["old"], "two": ["two", "more"]}
    _, differences = rewritten(TEXT, "page.md", lambda name: made[name])
    assert [(d.block.name, d.here, d.made) for d in differences] == [("one", "old", ""), ("two", "", "more")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- generated: one -->\n", r"p.md:1: table `one` has no end"),
        ("a\n<!-- end -->\n", r"p.md:2: <!-- end --> ends no table"),
        (
            "<!-- generated: one -->\n<!-- generated: two -->\n<!-- end -->\n",
            r"p.md:2: a table begins before `one` of line 1 ends",
        ),
    ],
)
def test_marks_come_in_pairs(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        blocks_of(text, "p.md")


# The command


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with one table, of a file with one row."""
    content = {"schema_version": 1, "host": HOST, "rows": [row("gmm:2", threads=2, torch=200.0, torch_compile=300.0)]}
    (tmp_path / "torch_compile.json").write_text(json.dumps(content))
    path = tmp_path / "page.md"
    path.write_text(f"words\n\n<!-- generated: torch-compile -->\n{END}\n")
    return path


def test_a_check_finds_what_a_run_mends(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(page), "--results", str(page.parent)]
    before = page.read_text()
    assert main([*argv, "--check"]) == 1
    assert page.read_text() == before
    assert f"{page}:3: table `torch-compile` is out of date" in capsys.readouterr().out
    assert main(argv) == 0
    assert "| `gmm:2` | N=1, 2 threads | 100.0 | 200.0 | 300.0 | 1.50 |" in page.read_text().splitlines()
    assert main([*argv, "--check"]) == 0
    page.write_text(page.read_text().replace("300.0", "100.0"))  # someone mends a figure by hand
    capsys.readouterr()
    assert main([*argv, "--check"]) == 1
    assert (
        "| 100.0 | 1.50 |\n  made:  | `gmm:2` | N=1, 2 threads | 100.0 | 200.0 | 300.0 | 1.50 |"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), ("{", "is not JSON"), ('{"schema_version": 7}', "has schema_version 7, expected 1")],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError, match=says):
        load(tmp_path, "a")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"<!-- generated: nothing -->\n{END}\n", "there is no table `nothing`; there are headline,"),
        (None, "cannot be read"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    path = tmp_path / "page.md"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main([str(path)])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


# The committed pages


def test_the_pages_say_what_the_results_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_every_table_is_on_a_page_and_every_file_in_a_table() -> None:
    shown = {block.name for path in PAGES for block in blocks_of(path.read_text(encoding="utf-8"), str(path))}
    assert set(SECTIONS) - shown <= {"headline"}  # which is for README.md
    results = ROOT / "experiments" / "results"
    files = {
        name
        for section in SECTIONS.values()
        for name in section.files
        if not section.command or (results / f"{name}.json").exists()
    }
    assert {name for name in files if "/" not in name} == {path.stem for path in results.glob("*.json")}
    assert all((results / f"{name}.json").exists() for name in files)  # a card's folder has more of it than a table


def test_what_is_still_to_be_measured_says_how(tmp_path: Path) -> None:
    section = SECTIONS["network-curves"]
    assert section.lines(tmp_path) == ["Not measured yet; `python -m experiments.network_curves` does it."]
    session = {
        "network": "a", "strategy": "gain", "seed": 0, "start_latency_s": 4e-3, "latency_s": 2e-3, "kernels_s": 1.9e-3,
        "trials": 60, "curve": [[8, 2.0, 3e-3], [20, 5.0, 2.05e-3], [60, 9.0, 2e-3]], "date": "2026-01-02", "revision": "abc",
    }  # fmt: skip
    content = {"schema_version": 1, "host": HOST, "settings": {"budget_s": 75.0, "threads": 2}, "rows": [session]}
    (tmp_path / "network_curves.json").write_text(json.dumps(content))
    lines = section.lines(tmp_path)
    assert cells(lines, "a")[-5:] == ["60", "20", "5", "20", "5"]
    assert lines[-1].endswith("2026-01-02; revision `abc`.*")


TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES[1:]}  # tests/documents has the first
COMMANDS = [
    line
    for text in TEXTS.values()
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("python ", "experiments/"))
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_pages_have_their_options(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "python":
        place = ROOT / words[2].replace(".", "/")
        source = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__main__.py"
    else:
        assert (ROOT / words[0]).is_file()
        source = (ROOT / words[0]).with_name("__main__.py")
    text = source.read_text(encoding="utf-8")
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.parent.name)
def test_places_that_a_page_names_are_there(page: Path) -> None:
    names = set(re.findall(r"`((?:[a-z_]+/)+[\w.]*|[a-z_]+\.(?:py|md))`", TEXTS[page]))
    near = {name for name in names if not name.startswith("autosched/")}
    assert near
    assert not [name for name in near if not (page.parent / name).exists() and not (ROOT / name).exists()]


def test_links_of_the_page_lead_somewhere() -> None:
    text = TEXTS[PAGE]
    links = re.findall(r"\]\(([^)]+)\)", text)
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert len(links) > 10
    for link in links:
        assert link[1:] in headings if link.startswith("#") else (PAGE.parent / link).is_file(), link
