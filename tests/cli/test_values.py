import argparse
from collections.abc import Callable

import pytest

from autosched.cli import options
from autosched.cli.output import clock_text, interval_text, print_json, printable, table, time_text


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60.0), ("2m", 120.0), ("1h", 3600.0), ("90", 90.0), ("1.5m", 90.0), ("2 M", 120.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert options.duration(text) == seconds


def test_shapes_and_settings() -> None:
    assert options.shape("1, 56,56,0") == (1, 56, 56, 0)
    assert options.setting("CO=128") == ("CO", 128)
    assert options.setting("layout=NCHW") == ("layout", "NCHW")
    assert options.setting("eps=1e-6") == ("eps", "1e-6")
    assert options.integer(0)("0") == 0


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (options.duration, "-5s"),
        (options.duration, "1e400"),
        (options.duration, "inf"),
        (options.shape, "99999999999"),
        (options.shape, "-1"),
        (options.setting, "a b=1"),
        (options.integer(1), "2147483648"),
    ],
)
def test_refusals(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="got"):
        parse(text)


def test_target_words() -> None:
    parser = argparse.ArgumentParser()
    options.add_target(parser)
    assert options.target_text(parser.parse_args([])) == "cpu"
    assert options.target_text(parser.parse_args(["--target", "llvm -mcpu=haswell"])) == "llvm -mcpu=haswell"
    assert options.target_text(parser.parse_args(["--target", "llvm", "-mcpu=haswell"])) == "llvm -mcpu=haswell"
    assert options.target_text(parser.parse_args(["--target", "llvm", "--mcpu", "haswell"])) == "llvm -mcpu=haswell"


def test_texts() -> None:
    assert [time_text(s) for s in (83.14e-6, 1.5, 2e-9, 0.0123, 0.999e-3, 0.0, None)] == [
        "83.1 us",
        "1.50 s",
        "2.00 ns",
        "12.3 ms",
        "999 us",
        "0 s",
        "-",
    ]
    assert interval_text(83.14e-6, (82.7e-6, 83.6e-6)) == "83.1 us [82.7, 83.6]"
    assert [clock_text(s) for s in (5, 95, 3725, None)] == ["0:05", "1:35", "1:02:05", "-:--"]
    assert table(("a", "bb"), [("ccc", "d\x1b[0m")]) == "a    bb\nccc  d?[0m"
    assert printable("a\nb") == "a?b"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), (1.0, float("inf"))], "b": {"c": -0.0}})
    assert capsys.readouterr().out == '{"a": [null, [1.0, null]], "b": {"c": -0.0}}\n'
