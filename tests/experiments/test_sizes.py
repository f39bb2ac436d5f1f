"""The comparison of kernels of open sizes with those of constants."""

from __future__ import annotations

from experiments.sizes import Case, all_cases, compared


def test_channels_are_not_open() -> None:
    cases = {c.label: c for c in all_cases()}
    assert cases["c2d:1"].varying == ("N", "H", "W")
    assert cases["gmm:0"].varying == ("B", "N")
    assert len(cases) == len(all_cases())


def test_both_kernels_are_timed() -> None:
    row = compared(Case("add", "add", {"M": 40, "N": 33}, ("M", "N")), 2)
    assert row["seconds"].keys() == row["llvm_seconds"].keys() == {"sized", "exact"}
    assert min(*row["seconds"].values(), *row["llvm_seconds"].values()) > 0
