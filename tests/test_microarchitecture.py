"""Rows of microarchitectures: complete, with the source of each number, and none that a vector's width chooses."""

from __future__ import annotations

import ast
import inspect
import math
from dataclasses import fields
from pathlib import Path

import pytest

from autosched.target import MICROARCHITECTURES, Microarchitecture, microarchitecture
from autosched.target.cpu import PROCESSORS
from autosched.target.microarchitecture import GENERIC, GENERIC_AVX512, ZEN1, ZEN2, ZEN3
from autosched.target.provenance import PROVENANCE

ROOT = Path(__file__).resolve().parent.parent
ROWS = {row.name: row for row in (GENERIC, *MICROARCHITECTURES.values())}
NUMBERS = tuple(f.name for f in fields(Microarchitecture) if f.name != "name")
COUNTS = {"l1_ways", "page_bytes"}
COSTS = {  # cycles, bytes or a share of something that need not be there, or that nobody measured
    *("gather", "tile_start", "nan_test", "horizontal_reduction", "conflict_line", "dtlb_miss", "prefetch_restart"),
    *("adjacent_line_bytes", "overrun_share", "overrun_bytes", "page_walk", "unaligned_forward", "write_back"),
    *("smt_load_contention", "unequal_cores", "l3_start", "dram_start", "streams", "l3_stays", "l3_leaves"),
}
AVX512 = ("knights", "x86-64-v4", "icelake", "sapphirerapids")  # levels of an instruction set


def sources(row: str) -> set[str]:
    """Fields whose source is told for a row."""
    return {field for p in PROVENANCE if row in p.rows for field in p.fields}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_field_of_a_row_is_set(row: Microarchitecture) -> None:
    for field in NUMBERS:
        value = getattr(row, field)
        assert isinstance(value, int if field in COUNTS else float), field
        assert math.isfinite(value), field
        assert value > 0 or (value == 0 and field in COSTS), field
    assert row.decode_width <= row.issue_width
    assert row.fma_latency <= row.accumulator_step
    assert row.dram_bandwidth <= row.l3_bandwidth <= row.l2_bandwidth
    assert row.unequal_cores <= 1
    assert row.l3_stays < row.l3_leaves or row.l3_stays == row.l3_leaves == 0


def test_rows_have_names_of_their_own() -> None:
    assert len(ROWS) == len({GENERIC, *MICROARCHITECTURES.values()})


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_number_has_a_source(row: Microarchitecture) -> None:
    """A row tells it where it differs from the generic one."""
    base = GENERIC_AVX512 if row.nan_test == 0 else GENERIC
    told = sources(row.name) | (sources(base.name) if row is not base else set())
    own = {f for f in NUMBERS if row is GENERIC or getattr(row, f) != getattr(GENERIC, f)}
    assert own <= told


def test_sources_name_rows_and_fields_that_are_there() -> None:
    assert {row for p in PROVENANCE for row in p.rows} <= set(ROWS)
    assert {field for p in PROVENANCE for field in p.fields} <= set(NUMBERS)
    assert all(p.source.endswith(".") for p in PROVENANCE)
    pairs = [(row, field) for p in PROVENANCE for row in p.rows for field in p.fields]
    assert len(pairs) == len(set(pairs))


def test_every_field_says_what_it_is() -> None:
    """Each has a sentence below it."""
    (record,) = ast.parse(inspect.getsource(Microarchitecture)).body
    assert isinstance(record, ast.ClassDef)
    told = {
        field.target.id
        for field, text in zip(record.body, record.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and str(text.value.value).endswith(".")
    }
    assert told == {"name", *NUMBERS}


def test_rows_are_of_processors_that_are_known() -> None:
    assert set(MICROARCHITECTURES) <= set(PROCESSORS)
    assert microarchitecture("znver3") is ZEN3
    assert microarchitecture("a core of next year") is GENERIC


def test_what_was_measured_on_zen_3_acts_on_its_relatives_alone() -> None:
    measured = {f for p in PROVENANCE if p.rows == ("Zen 3",) for f in p.fields}
    changed = {f for f in measured if getattr(ZEN3, f) != getattr(GENERIC, f)}
    assert changed >= {"tile_start", "dtlb_miss", "conflict_line", "adjacent_line_bytes", "prefetch_restart"}
    for row in {*ROWS.values()} - {ZEN1, ZEN2, ZEN3}:
        own = {f for p in PROVENANCE if row.name in p.rows for f in p.fields}
        assert all(getattr(row, f) == getattr(GENERIC, f) for f in changed - own), row.name


def test_finding_nan_takes_an_instruction_where_the_code_has_one() -> None:
    for name, (_, level, *_) in PROCESSORS.items():
        assert microarchitecture(name).nan_test == (0 if level in AVX512 else 1), name


def by_vector_bytes(tree: ast.Module) -> list[int]:
    """Lines of tables whose keys are lengths of vectors."""
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = [(t.lineno, {k.value for k in t.keys if isinstance(k, ast.Constant)}) for t in tables]
    return [line for line, found in keys if found and found <= {16, 32, 64, 128}]


def test_no_number_is_chosen_by_the_bytes_of_a_vector() -> None:
    files = [*(ROOT / "autosched/target").glob("*.py"), *(ROOT / "cost_model/cpu").glob("*.py")]
    assert len(files) > 8
    assert by_vector_bytes(ast.parse("TILE_BEGIN = {16: 22.0, 32: 22.0, 64: 0.0}")) == [1]
    found = {path.name: by_vector_bytes(ast.parse(path.read_text(encoding="utf-8"))) for path in files}
    assert not {name: lines for name, lines in found.items() if lines}
