"""Limits of correct values, comparison, sampling and statistics: pure functions of the measuring side."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.source import KernelSource
from autosched.measure.buffers import ALIGNMENT, POISON_FLOAT, REDZONE, GuardedBuffer, poison_bytes
from autosched.measure.check import Array, Expected, compare
from autosched.measure.problem import limit_file, limits, write_limits
from autosched.measure.protocol import (
    REQUESTS,
    Frames,
    Hold,
    LoadData,
    Measure,
    Message,
    ProtocolError,
    Sample,
    Samples,
    Setup,
    decode,
    encode,
)
from autosched.measure.results import median_interval
from autosched.measure.runner import CanaryKernel, Timer
from autosched.measure.slots import Slots
from autosched.measure.timing import MAX_SAMPLES, Witness, calibrate, fastest_sample, take_samples
from autosched.runtime.spec import ArraySpec
from autosched.target import parse_target


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits_are_the_outermost_values_within_the_bound(dtype: str) -> None:
    rng = np.random.default_rng(1)
    value = rng.standard_normal(1000) * 10.0 ** rng.integers(-30, 30, 1000)
    bound = np.abs(value) * 10.0 ** rng.integers(-9, 0, 1000)
    low, high = limits(value, bound, dtype)
    assert low.dtype == np.dtype(dtype)
    assert (low.astype(np.float64) >= value - bound).all()
    assert (high.astype(np.float64) <= value + bound).all()
    infinity = low.dtype.type(np.inf)
    assert (np.nextafter(low, -infinity).astype(np.float64) < value - bound).all()
    assert (np.nextafter(high, infinity).astype(np.float64) > value + bound).all()


def test_limits_of_special_values() -> None:
    low, high = limits(np.array([np.inf, -np.inf, np.nan, 1e39, 1.0]), np.array([1.0, 1.0, 0.0, 1.0, 0.0]), "float32")
    np.testing.assert_array_equal(low, np.array([np.inf, -np.inf, np.nan, np.inf, 1.0], np.float32))
    np.testing.assert_array_equal(high, np.array([np.inf, -np.inf, np.nan, np.inf, 1.0], np.float32))
    low, high = limits(np.array([-128, 5, 127]), np.array([1.0, 0.5, 2.0]), "int8")
    assert (low.tolist(), high.tolist()) == ([-128, 5, 125], [-127, 5, 127])
    ends = np.array([-(2**63), 2**63 - 1, 0])
    low, high = limits(ends, np.array([2.0, 2.0, np.inf]), "int64")
    assert low.tolist() == [-(2**63), 2**63 - 3, -(2**63)]
    assert high.tolist() == [-(2**63) + 2, 2**63 - 1, 2**63 - 1]
    ends = np.array([2**64 - 1, 2**63, 1, 0], np.uint64)
    low, high = limits(ends, np.array([2.0, 1.5, 5.0, np.inf]), "uint64")
    assert low.tolist() == [2**64 - 3, 2**63 - 1, 0, 0]
    assert high.tolist() == [2**64 - 1, 2**63 + 1, 6, 2**64 - 1]
    low, high = limits(np.array([True, False]), np.array([0.0, 1.0]), "bool")
    assert (low.tolist(), high.tolist()) == ([True, False], [True, True])


def verdict(got: Array, value: Array, bound: Array | float) -> str | None:
    spec = ArraySpec("C", got.shape, str(got.dtype))
    bounds = np.broadcast_to(np.asarray(bound, np.float64), value.shape)
    low, high = limits(value, bounds, spec.dtype)
    return compare(spec, got.reshape(-1), Expected(*(a.reshape(-1) for a in (low, high, value, bounds))))


def test_compare_names_the_worst_element() -> None:
    value = np.arange(12.0).reshape(3, 4)
    got = value.astype(np.float32)
    assert verdict(got, value, 0.0) is None
    got[2, 1] += 0.5
    got[1, 1] += 0.25
    message = verdict(got, value, 0.01)
    assert message == "C[2, 1] is 9.5, expected 9 +- 0.01; 2 of 12 elements are wrong"
    assert verdict(got, value, 0.5) is None


def test_compare_tells_expected_nan_from_poison() -> None:
    value = np.array([np.nan, 1.0, np.nan])
    assert verdict(np.array([np.nan, 1.0, np.nan], np.float32), value, 0.0) is None
    assert "1 of 3" in (verdict(np.array([np.nan, np.nan, np.nan], np.float32), value, 0.0) or "")
    assert "1 of 3" in (verdict(np.array([0.0, 1.0, np.nan], np.float32), value, 0.0) or "")
    poison = poison_bytes("float32", 4).view(np.float32)[0]
    assert np.isnan(poison)
    message = verdict(np.array([poison, 1.0, np.nan], np.float32), value, 0.0) or ""
    assert "1 were never written" in message


def test_an_expected_nan_does_not_hide_what_is_wrong_behind_it() -> None:
    value = np.zeros(200_001)
    value[[7, 150_000]] = np.nan
    got = value.astype(np.float32)
    assert verdict(got, value, 0.0) is None
    for wrong in (8, 150_001, 200_000):
        got[wrong] = 1.0
        assert "1 of 200001" in (verdict(got, value, 0.0) or "")
        got[wrong] = 0.0


def test_infinite_bound_admits_everything_that_was_written() -> None:
    value, bound = np.array([1.0, np.nan, np.inf, 1.0]), np.array([np.inf, np.inf, np.inf, 0.0])
    for got in ([np.nan, 3.0, np.nan, 1.0], [-np.inf, np.nan, 2.0, 1.0]):
        assert verdict(np.array(got, np.float32), value, bound) is None
    poisoned = np.concatenate([poison_bytes("float32", 4).view(np.float32), np.ones(3, np.float32)])
    assert "1 of 4" in (verdict(poisoned, value, bound) or "")


@pytest.mark.parametrize(
    ("dtype", "wrong"), [("int8", 6), ("uint8", 6), ("int32", 6), ("int64", 2**53 + 1), ("bool", 0)]
)
def test_compare_integers_exactly(dtype: str, wrong: int) -> None:
    value = np.array([1, wrong - 1 if dtype != "bool" else 1])
    got = value.astype(dtype)
    assert verdict(got, value, 0.0) is None
    got[1] = wrong
    assert "C[1] is" in (verdict(got, value, 0.0) or "")


def test_compare_refuses_a_bool_that_is_neither() -> None:
    got = np.array([1, 2], np.uint8).view(np.bool_)
    assert "1 of 2 elements" in (verdict(got, np.array([1, 1]), 0.0) or "")


def test_compare_covers_every_chunk_and_empty_arrays() -> None:
    value = np.zeros(200_001)
    got = value.astype(np.float32)
    got[-1] = 1.0
    assert "C[200000]" in (verdict(got, value, 0.0) or "")
    assert verdict(np.zeros((0, 3), np.float32), np.zeros((0, 3)), 0.0) is None
    assert "C[0]" in (verdict(np.ones((), np.float32), np.zeros(()), 0.0) or "")


def test_the_worst_element_is_the_furthest_beyond_its_bound() -> None:
    value = np.array([4.0, 4.0, -4.0])
    wrong_sign = verdict(np.array([9.0, 4.0, 4.0], np.float32), value, 1.0)
    assert wrong_sign == "C[2] is 4, expected -4 +- 1; 2 of 3 elements are wrong"
    beyond = verdict(np.array([9.0, 7.0, -4.0], np.float32), value, np.array([4.5, 0.5, 0.5]))
    assert beyond == "C[1] is 7, expected 4 +- 0.5; 2 of 3 elements are wrong"
    nan = verdict(np.array([9.0, np.nan, -4.0], np.float32), value, 1.0)
    assert nan == "C[1] is nan, expected 4 +- 1; 2 of 3 elements are wrong"


def test_elements_are_printed_as_they_are() -> None:
    large = verdict(np.array([0, 2**53 + 1]), np.array([0, 2**53]), 0.0)
    assert large == "C[1] is 9007199254740993, expected 9007199254740992 +- 0; 1 of 2 elements are wrong"
    truth = verdict(np.array([True, False]), np.array([True, True]), 0.0)
    assert truth == "C[1] is 0, expected 1 +- 0; 1 of 2 elements are wrong"
    fraction = verdict(np.array([0.1]), np.array([0.25]), 0.125)
    assert fraction == "C[0] is 0.1, expected 0.25 +- 0.125; 1 of 1 elements are wrong"


@pytest.mark.parametrize("got", [-1.0, 3.0])
def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch, got: float) -> None:
    monkeypatch.setattr(np, "empty", np.ones)
    assert "1 of 2" in (verdict(np.array([1.0, got], np.float32), np.array([1.0, 1.0]), 0.5) or "")


@np.errstate(all="raise")
def test_no_number_is_too_much_for_an_explanation() -> None:
    signalling = np.array([0x7FA00000], np.uint32).view(np.float32)
    assert "C[0] is nan" in (verdict(signalling, np.array([1.0]), 0.0) or "")
    assert "C[0] is 1e+308" in (verdict(np.array([1e308]), np.array([-1e308]), 0.0) or "")


@pytest.mark.parametrize("offset", [-REDZONE, -1, 0, REDZONE - 1])
@pytest.mark.parametrize("guard", [b"\xa5", POISON_FLOAT])
def test_buffer_sees_every_byte_around_it(offset: int, guard: bytes) -> None:
    buffer = GuardedBuffer(1001, guard)
    assert buffer.address % ALIGNMENT == 0
    assert buffer.breach() is None
    ctypes.memset(buffer.address + offset + (1001 if offset >= 0 else 0), 0, 1)
    distance = offset + 1 if offset >= 0 else -offset
    side = "after its end" if offset >= 0 else "before its start"
    assert buffer.breach() == f"1 bytes {side}, the nearest {distance} bytes away"
    buffer.guard()
    assert buffer.breach() is None


def test_buffer_beyond_all_memory() -> None:
    with pytest.raises(MemoryError):
        GuardedBuffer(1 << 62)


def scripted(call_s: Callable[[int], float]) -> Callable[[int], float]:
    """A clock for `take_samples`: sample number -> seconds of a call."""
    number = -1

    def run(reps: int) -> float:
        nonlocal number
        number += 1
        return reps * call_s(number)

    return run


@pytest.mark.parametrize(
    ("call_s", "least", "most"),
    [(1e-7, 42, 50), (1e-3, 42, 50), (4e-3, 13, 13), (0.02, 5, 5), (0.06, 3, 3), (2.0, 2, 2)],
)
def test_number_of_samples(call_s: float, least: int, most: int) -> None:
    samples, early = take_samples(scripted(lambda _: call_s), 0.05, None)
    assert not early
    assert least <= len(samples) <= most
    assert all(s == pytest.approx(call_s) for s in samples)


def test_early_stop_wants_confirmation() -> None:
    for call_s, n in ((0.0105, 2), (0.0087, 4), (0.0082, 7), (0.0081, 10)):
        slow, early = take_samples(scripted(lambda _, s=call_s: s), 0.2, 0.008)
        assert early
        assert len(slow) == n
    near, early = take_samples(scripted(lambda _: 0.0079), 0.2, 0.008)
    assert not early
    assert len(near) == 26
    # many short calls have warmed up when it is known how many make a sample: that one counts as well
    short, early = take_samples(scripted(lambda n: 9e-5 if n == 1 else 1e-4), 0.05, 9e-5)
    assert not early
    assert short[0] == pytest.approx(9e-5)
    # one fast sample among disturbed ones is enough to go on
    samples, early = take_samples(scripted(lambda n: 0.008 if n == 4 else 0.019), 0.2, 0.008)
    assert early
    assert len(samples) == 2
    samples, early = take_samples(scripted(lambda n: 0.008 if n in (1, 6) else 0.019), 0.2, 0.008)
    assert not early
    # the first call or the second one is an outlier, the other one shows it
    for outlier in (0, 1):
        samples, early = take_samples(scripted(lambda n, o=outlier: 0.5 if n == o else 0.002), 0.05, 0.002)
        assert not early
        assert len(samples) >= 5


def test_a_sample_of_the_comparison_is_the_fastest_of_short_ones() -> None:
    calls: list[int] = []

    def run(reps: int) -> float:
        calls.append(reps)
        return reps * (1e-4 if len(calls) == 4 else 1.5e-4)

    assert fastest_sample(run, 10, 0.009) == pytest.approx(1e-4)
    assert calls == [10] * 7
    samples = iter(range(1, MAX_SAMPLES + 1))
    assert fastest_sample(lambda _: 1e-6 / next(samples), 1, 0.01) == pytest.approx(1e-6 / MAX_SAMPLES)
    assert fastest_sample(lambda reps: reps * 0.015, 1, 0.01) == pytest.approx(0.015)


@dataclass
class Scripted:
    call_s: dict[int, float]  # of calls by their number, others take 3 ms
    reps: int = 0
    calls: int = 0


class ScriptedSlots(Slots[Scripted]):
    def __init__(self, held: Scripted) -> None:
        super().__init__()
        self._held[0] = held

    def _clock(self, held: Scripted) -> Callable[[int], float]:
        def run(reps: int) -> float:
            held.calls += reps
            return sum(held.call_s.get(n, 3e-3) for n in range(held.calls - reps, held.calls))

        return run

    def _launch_again(self, held: Scripted) -> None:
        pass

    def _load(self) -> None:
        pass

    def _canary(self) -> tuple[float, ...]:
        return ()


@pytest.mark.parametrize(
    ("call_s", "calls", "expected"),
    [
        ({0: 2e-3}, 6, 2e-3),  # the first call, one that finds how many calls make a short sample, four samples
        ({1: 2e-3}, 6, 3e-3),
        ({4: 2e-3}, 6, 2e-3),
        ({0: 0.5}, 1, 0.5),  # a long one alone
    ],
)
def test_samples_of_the_comparison(call_s: dict[int, float], calls: int, expected: float) -> None:
    held = Scripted(call_s)
    reply = ScriptedSlots(held)._sample(Sample(1, 0, 0.0105))
    assert isinstance(reply, Samples)
    assert reply.samples == (expected,)
    assert held.calls == calls


def test_a_long_call_is_a_sample_from_the_first_one_on() -> None:
    """What has clearly lost by then is not called again."""
    calls: list[int] = []

    def counted(call_s: Callable[[int], float]) -> Callable[[int], float]:
        run = scripted(call_s)
        calls.clear()
        return lambda reps: calls.append(reps) or run(reps)  # type: ignore[func-returns-value]

    for call_s, n in ((0.131, 1), (0.111, 2), (0.101, 3)):
        samples, early = take_samples(counted(lambda _, s=call_s: s), 0.05, 0.1)
        assert samples == (call_s,) * n
        assert early == (n < 3)
        assert calls == [1] * n
    samples, early = take_samples(counted(lambda n: (0.2, 0.1, 0.1)[n]), 0.05, None)
    assert (samples, early) == ((0.2, 0.1, 0.1), False)
    samples, early = take_samples(counted(lambda n: 0.12 if n == 0 else 0.099), 0.05, 0.1)
    assert (samples, early) == ((0.12, 0.099, 0.099), False)


def test_only_samples_of_quiet_moments_tell_that_a_candidate_has_lost() -> None:
    """One as fast as the best, slower by half while another thread has a share of the core: until the tenth sample."""
    now = [0]

    def candidate(reps: int) -> float:
        now[0] += 1
        return reps * (1e-3 if now[0] > 10 else 1.5e-3)

    witness = Witness(lambda reps: reps * (1e-6 if now[0] in (0, 10, 11) else 1.6e-6))
    samples, early = take_samples(candidate, 0.03, 1e-3, witness)
    assert (min(samples), early) == (1e-3, False)
    now[0] = 0
    assert take_samples(candidate, 0.03, 1e-3)[1]
    samples, early = take_samples(
        scripted(lambda _: 3e-3), 0.03, 1e-3, Witness(scripted(lambda n: 1e-6 if n < 9 else 2e-6))
    )
    assert (len(samples), early) == (2, True)


def test_a_witness_that_has_been_woken_looks_twice() -> None:
    seconds = iter([1e-3, 1e-3, 2e-3, 1e-3, 2e-3, 2e-3])
    witness = Witness(lambda _: next(seconds))
    assert [witness.is_quiet() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_canary_runs_on_as_many_threads_as_a_kernel(threads: int) -> None:
    canary = CanaryKernel(Timer(parse_target("cpu")), threads)
    canary.forget()
    assert not canary.is_right()
    assert canary.clock(2) > 0
    assert canary.is_right()


def test_a_witness_leaves_a_quiet_machine_as_many_samples() -> None:
    for call_s in (1e-3, 1.1e-3, 1.5e-3):
        alone, with_witness = (
            take_samples(scripted(lambda _, s=call_s: s), 0.03, 1e-3, witness)
            for witness in (None, Witness(scripted(lambda _: 1e-6)))
        )
        assert alone == with_witness


def test_calibration_survives_a_clock_that_stands_still() -> None:
    reps, seconds = calibrate(scripted(lambda n: 0.0 if n < 3 else 1e-6), 1e-3)
    assert (reps >= 1000, seconds) == (True, pytest.approx(1e-6))


def test_median_interval_is_the_textbook_one() -> None:
    numbers = [float(i) for i in range(1, 101)]
    assert median_interval(numbers[:5]) == (1.0, 5.0)
    assert median_interval(numbers[:7]) == (1.0, 7.0)
    assert median_interval(numbers[:9]) == (2.0, 8.0)
    assert median_interval(numbers[:20]) == (6.0, 15.0)
    assert median_interval(numbers) == (40.0, 61.0)
    assert median_interval([3.0]) == (3.0, 3.0)


def test_messages_survive_the_wire() -> None:
    spec = ArraySpec("A", (2, 3), "float32")
    setup = Setup(1, "run", parse_target("llvm -mcpu=haswell"), 1 << 40)
    messages: list[Message] = [
        setup,
        LoadData(1, "/x", (spec,), (), "memory"),
        Hold(2, 0, "/x/1.o", KernelSource("add", "define", 64, 1)),
        Measure(3, 0, 0.05, None),
        Measure(4, 0, 0.05, 1e-7),
    ]
    frames = Frames()
    stream = b"".join(encode(message) for message in messages)
    for i in range(0, len(stream), 7):
        frames.feed(stream[i : i + 7])
    for message in messages:
        body = frames.next()
        assert body is not None
        assert decode(body, REQUESTS) == message
    assert frames.next() is None


def test_number_too_large_for_a_float_is_refused() -> None:
    body = b'{"kind": "Measure", "id": 1, "slot": 0, "floor_s": 1' + b"0" * 400 + b', "best_s": null}'
    with pytest.raises(ProtocolError, match="not a finite number"):
        decode(body, REQUESTS)
    assert math.isfinite(decode(body.replace(b"0" * 400, b""), REQUESTS).floor_s)


def test_poison_is_nan_in_every_width(tmp_path: Path) -> None:
    for kind in (np.float16, np.float32, np.float64):
        assert np.isnan(poison_bytes("float32", 16).view(kind)).all()


def test_limits_where_there_are_no_infinities(tmp_path: Path) -> None:
    """What is too large is NaN, which an interval that reaches there admits."""
    value, bound = np.array([1.0, 460.0, 9000.0, -9000.0, 440.0]), np.array([0.05, 20.0, 1.0, 1.0, 20.0])
    low, high = (x.astype(np.float64) for x in limits(value, bound, "float8_e4m3fn"))
    np.testing.assert_array_equal(low, [1.0, 448.0, np.nan, np.nan, 448.0])
    np.testing.assert_array_equal(high, [1.0, np.nan, np.nan, np.nan, 448.0])
    spec = ArraySpec("C", (5,), "float8_e4m3fn")
    write_limits(tmp_path, "some", (spec,), [(value, bound)])
    written = np.load(limit_file(tmp_path, "some", 0, "bound", 0))
    np.testing.assert_array_equal(np.isinf(written), [False, True, False, False, False])
