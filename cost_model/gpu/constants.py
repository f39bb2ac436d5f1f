"""Fitted constants of the GPU's analytic latency, and the table of their values for each card.

`cards.json` has those of cards that were measured (`experiments.gpu.fit` writes it); a card that was not has those of
another card of its compute capability, or else the values below, which are from papers (`cost_model.gpu.machine`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from autosched.errors import TargetError
from autosched.ir.expr import Expr
from autosched.target import GpuFacts

CARDS = Path(__file__).with_name("cards.json")
Constant = Expr | float


@dataclass(frozen=True)
class CardConstants:
    """Rates of a multiprocessor for each cycle, latencies in cycles, shares of the data sheet's rates.

    They are numbers; while they are fitted, parameters of the closed forms.
    """

    clock_share: Constant = 1.0  # of the boost clock, under load
    tensor_share: Constant = 1.0  # of the rate of matrix instructions that the tables have
    alone: Constant = 1.5  # cycles from one instruction of a warp to its next when no other warp fills the gap
    issue: Constant = 1.0  # cycles of a scheduler for an instruction, waits between them included
    global_wavefronts: Constant = 2.0  # cycles of L1 for what shared memory would deliver in one
    matrix_latency: Constant = 33.0  # until the result of a product of matrices can be used
    shared_latency: Constant = 30.0
    global_latency: Constant = 550.0
    tile_latency: Constant = 1150.0  # of what the copy engine loads
    cluster_latency: Constant = 200.0  # the same, more where two blocks share it: they tell each other by then
    multicast_share: Constant = 0.5  # of its bytes on the way from L2, that it costs each of the blocks
    loads_ahead: Constant = 4.0  # steps of a reduction that reads global memory, whose loads are on their way together
    block_latency: Constant = 500.0  # start and end of a block
    block_cycles: Constant = 150.0  # from the start of a block to that of the next on the same multiprocessor
    barrier_latency: Constant = 30.0
    shuffle_latency: Constant = 25.0
    step_instructions: Constant = 6.0  # counter, comparison, branch and addresses of an iteration of a loop
    fill_instructions: Constant = 2.0  # of a copy into a shared buffer, beside its load and store: addresses
    iteration_instructions: Constant = 20.0  # of a pipeline's iteration per buffer: barrier, place, addresses
    l2_port: Constant = 64.0  # bytes a cycle from L2 into one multiprocessor
    l2_shared: Constant = 40.0  # the same for each when all ask at once
    l2_tiles: Constant = 47.0  # the same where the copy engine asks
    dram_share: Constant = 0.92  # of the data sheet's bandwidth that kernels reach
    launch_s: Constant = 3.0e-6  # start and end of a kernel
    overlap_loss: Constant = 0.15  # share of the hidden times (all but the largest) that shows


NAMES: tuple[str, ...] = tuple(field.name for field in fields(CardConstants))


def constants_of(facts: GpuFacts) -> CardConstants:
    """Return the constants of the card, of another card of its compute capability, or the defaults."""
    return CardConstants(**_row_of(facts).get("constants", {}))


def matrix_rates_of(facts: GpuFacts) -> Mapping[str, float]:
    """Multiply-adds of a multiprocessor in a cycle of the boost clock, by tensor pipe, as measured; empty if not."""
    rates: Mapping[str, float] = _row_of(facts).get("matrix_rates", {})
    return rates


def _row_of(facts: GpuFacts) -> Mapping[str, Any]:
    cards = read_cards()
    alike = [row for row in cards.values() if row["arch"] == facts.arch and facts.arch]
    return cards[facts.name] if facts.name in cards else alike[0] if alike else {}


@lru_cache(maxsize=1)
def read_cards(path: Path = CARDS) -> Mapping[str, Mapping[str, Any]]:
    """Name of a card -> its compute capability, its constants and what they were fitted to.

    Raises TargetError for a file of another form.
    """
    try:
        cards = json.loads(path.read_text(encoding="utf-8"))
        for row in cards.values():
            CardConstants(**row["constants"])
            {pipe: float(rate) for pipe, rate in row.get("matrix_rates", {}).items()}
            row["arch"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(
            f"{path} must hold a table of cards with 'arch' and 'constants' each: {error}; "
            "write it anew with experiments.gpu.fit"
        ) from None
    return dict(cards)


def with_card(
    cards: Mapping[str, Mapping[str, Any]],
    facts: GpuFacts,
    constants: CardConstants,
    fitted_to: str,
    matrix_rates: Mapping[str, float],
) -> str:
    """The text of the table with the row of one card replaced. The constants must be numbers."""
    rounded = {name: float(f"{value:.4g}") for name, value in asdict(constants).items()}
    rates = {pipe: float(f"{rate:.4g}") for pipe, rate in matrix_rates.items()}
    row = {"arch": facts.arch, "fitted_to": fitted_to, "constants": rounded, "matrix_rates": rates}
    return json.dumps({**cards, facts.name: row}, indent=1) + "\n"
