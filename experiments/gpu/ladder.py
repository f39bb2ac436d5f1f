"""The step `ladder`: which form of a product by warpgroups is fast, each beside torch.matmul on the same matrices.

All forms are compiled first, side by side; one process runs them, and another takes its place after a fault or where a
kernel does not end.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

from autosched.cli.output import table
from autosched.errors import AutoschedError
from autosched.runtime.gpu.compile import CompileError, compile_source, cuda_compiler
from autosched.target import usable_cores
from experiments.arena import Lost, ProcessArena
from experiments.gpu.climb import ARCH, MULTIPROCESSORS
from experiments.gpu.steps import Row, StepRequest
from experiments.gpu.warpgroup_product import ProductForm, Size, source

P = ProductForm
RUNGS = (
    P(128, 256, stores_tiles=True), P(128, 256, stores_tiles=True, panels=2), P(128, 256, cluster=2),
    P(128, 256, cluster=2, stores_tiles=True), P(128, 256, cluster=2, stores_tiles=True, panels=2),
    P(256, 128, stores_tiles=True), P(256, 128, cluster=2, stores_tiles=True, panels=1),
    P(128, 128, takes_turns=True, stores_tiles=True), P(128, 128, cluster=2, takes_turns=True, stores_tiles=True),
    P(64, 256, takes_turns=True, stores_tiles=True, panels=2),
    P(64, 256, cluster=2, takes_turns=True, stores_tiles=True), P(128, 192, stores_tiles=True),
    P(128, 256, stores_tiles=True, panels=1), P(128, 256, stores_tiles=True, group=16),
    P(128, 256, stores_tiles=True, group=4), P(128, 256, cluster=2, stores_tiles=True, panels=2, group=4),
    P(128, 256, persistent=False, stores_tiles=True), P(128, 256, is_transposed=True, stores_tiles=True),
    P(128, 256), P(128, 128), P(128, 128, stores_tiles=True), P(256, 128), P(128, 128, takes_turns=True),
    P(128, 128, consumers=1, stores_tiles=True, panels=1), P(64, 256, consumers=1, stores_tiles=True, panels=2),
    P(64, 128, consumers=1, stores_tiles=True),
)  # fmt: skip
SIZES = (Size(8192, 8192, 8192), Size(4096, 4096, 4096))
LATER = (Size(2048, 2048, 2048), Size(512, 4096, 4096), Size(8192, 8192, 1024))  # for the best of the others
SMALL = (
    P(128, 128, stores_tiles=True), P(64, 256, consumers=1, stores_tiles=True, panels=2),
    P(64, 128, consumers=1, stores_tiles=True),
)  # fmt: skip  # and for sizes that have few tiles
DRY_RUNGS, DRY_SIZE = (P(128, 128, stages=2), P(128, 128, stages=2, cluster=2, stores_tiles=True)), Size(256, 136, 136)
BEST = 4
FORM_S, FIRST_S = 10.0, 45.0


def predict(request: StepRequest) -> str:
    return (
        "8192^3: 128x256 with tile store 1.02 of cuBLAS as on 26 November, by 2 panels with its fourth stage 1.03; "
        "clusters of 2 as fast or 2 % faster now that nothing is fenced; 512x4096x4096 with 64x256 0.8"
    )


def label(form: ProductForm, size: Size) -> str:
    return f"{size.m}x{size.n}x{size.k}: {form.name}"


def compiled(form: ProductForm, size: Size) -> str | None:
    """The compiler's refusal; what is compiled is in the cache."""
    try:
        compile_source(source(form, size, MULTIPROCESSORS), cuda_compiler(ARCH))
    except (CompileError, AutoschedError) as error:
        return str(error)[:600]
    return None


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    give_up = time.monotonic() + request.seconds
    rungs, sizes = (DRY_RUNGS, (DRY_SIZE,)) if request.is_dry else (RUNGS, SIZES)
    where = "simulator" if request.is_dry else "card"
    command = [sys.executable, "-m", "experiments.gpu.climb", str(os.getpid()), where]
    arena = ProcessArena(command, request.out / "card.log")
    spawn = multiprocessing.get_context("spawn")
    rows: dict[tuple[ProductForm, Size], Row] = {}
    pool = ProcessPoolExecutor(max(1, min(12, usable_cores() - 1)), mp_context=spawn)
    try:
        if not request.is_dry:
            for size in sizes:
                for form in rungs:
                    pool.submit(compiled, form, size)
        pairs = [(form, size) for form in rungs for size in sizes]
        for form, size in pairs:
            if time.monotonic() > give_up:
                return
            rows[form, size] = asked(arena, form, size)
            yield label(form, size), rows[form, size]
        right = sorted(
            (r["seconds"], form.name, form) for (form, size), r in rows.items() if size == sizes[0] and "seconds" in r
        )
        for size in () if request.is_dry else LATER:
            for form in dict.fromkeys([*(form for _, _, form in right[:BEST]), *SMALL]):
                if time.monotonic() > give_up:
                    return
                yield label(form, size), asked(arena, form, size)
    finally:
        arena.close()
        pool.shutdown(wait=False, cancel_futures=True)


def asked(arena: ProcessArena, form: ProductForm, size: Size) -> Row:
    request = {"form": asdict(form), "size": [size.m, size.n, size.k]}
    given = {"form": asdict(form)}
    try:
        row = arena.ask(request, FIRST_S if arena.is_new else FORM_S)
    except Lost as lost:
        return given | {"error": str(lost)[:600]}
    if row.get("sticky"):
        arena.close()
    return given | row


def summary(rows: Mapping[str, Row]) -> str:
    lines = []
    for name, row in sorted(rows.items(), key=lambda item: (item[0].split(":")[0], -item[1].get("tflops", 0.0))):
        said = row.get("error") or row.get("wrong") or "; ".join(row.get("warnings", ()))
        speed = f"{row['tflops']:.0f}" if "tflops" in row else "-"
        lines.append((name, speed, f"{row['ratio']:.3f}" if "ratio" in row else "-", (said or "")[:70]))
    wrong = sum(1 for row in rows.values() if row.get("error") or row.get("wrong"))
    return f"{len(rows)} forms, {wrong} failed\n{table(('form', 'TFLOP/s', 'vs torch', ''), lines)}" if lines else ""
