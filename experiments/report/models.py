"""Tables of the search's parts: tuning curves, the learned model, candidates a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.cost_model_quality import APART, ONLINE, ONLINE_K, SPLITS, K
from experiments.report.markdown import table
from experiments.report.results import Lines, Results
from experiments.search_throughput import PHASES
from experiments.tuning import number
from experiments.tuning_curves import NAMES, Figure
from experiments.tuning_figure import HEADER, summary_rows

# What a score comes from, by the prefix in the file.
SCORES = {
    "": f"model, fitted on other programs of all workloads ({SPLITS} splits)",
    "loo_": "model, without the operator at that shape",
    "family_out_": "model, without the operator",
    "draft_": "draft alone",
    "chance_": "chance",
    "repeat_": "a second measurement",
}


def tuning(results: Results) -> Lines:
    """Where each variant of the search ends."""
    setting, sessions = Figure(**results.content["settings"]), results.content["sessions"]
    good = [session for session in sessions if "error" not in session]
    peak = max((session["peak_gflops"] for session in good if "peak_gflops" in session), default=None)
    said = f"{setting.title}, {setting.trials} trials; the peak of FMAs was {number(peak, 0)} GFLOP/s."
    return [*table(HEADER, summary_rows(good, NAMES)), "", said, "", results.source()]


def quality(results: Results) -> Lines:
    """How well scores order programs that their model has not seen."""
    found = results.content

    def figures(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(number(found.get(f"{prefix}{name}")) for name in names)

    apart = f"pairs more than {APART - 1:.0%} apart"
    names = ("pairwise_accuracy", "apart_accuracy", f"recall_at_{K}")
    known = {prefix: said for prefix, said in SCORES.items() if found.get(f"{prefix}{names[0]}") is not None}
    judged = table(
        ("scores", "pairs ordered rightly", apart, f"of the {K} fastest found"),
        [(said, *figures(prefix, names)) for prefix, said in known.items()],
    )
    own_names = ("pairwise_accuracy", f"recall_at_{ONLINE_K}")
    pairs, recall = "pairs ordered rightly", f"of the {ONLINE_K} fastest found"
    own = table(
        ("programs fitted on", pairs, "by the draft", recall, "by the draft"),
        [
            (str(n), *(cell for name in own_names for cell in figures(f"online_{n}_", (name, f"draft_{name}"))))
            for n in ONLINE
        ],
    )
    said = (
        f"{found['programs']:,} programs of {found['workloads']} workloads; "
        f"{number(1.0 - found['close_pairs'])} of the pairs are more than {APART - 1:.0%} apart."
    )
    title = "A search's own model, fitted on programs of the workload alone:"
    return [*judged, "", said, "", title, "", *own, "", results.source()]


def throughput(results: Results) -> Lines:
    """Candidates a second on one core, and what each phase takes."""
    found: Mapping[str, Any] = results.content
    rates = {"drawn": "sampled_per_s", "checked and drafted": "draft_per_s", "ranked too": "ranked_per_s"}
    header = (*(f"{name}, a second" for name in rates), *(f"{phase}, us" for phase in PHASES))
    cells = [f"{found[key]:,.0f}" for key in rates.values()]
    cells += [number(found["us_per_candidate"][phase]) for phase in PHASES]
    said = (
        f"`{found['workload']}`: {found['sketches']} sketches, {found['candidates']:,} candidates, "
        f"of which {number(found['legal_share'])} are legal."
    )
    return [*table(header, [cells]), "", said, "", results.source()]
