"""What a worker may answer, at random: every body is a message of ours or a `ProtocolError`, never anything else."""

import json
import random
from collections.abc import Callable

import pytest

from autosched.codegen.c.source import GpuSource, Launch, PixelBox, TensorMap
from autosched.codegen.source import KernelSource
from autosched.measure.protocol import (
    MAX_FRAME,
    REPLIES,
    REQUESTS,
    Build,
    Done,
    Failed,
    Frames,
    Hold,
    Measure,
    ProtocolError,
    Rate,
    Setup,
    decode,
    encode,
    source_as,
)
from autosched.target import parse_target

KINDS = {**REQUESTS, **REPLIES}
PROCESSORS = KernelSource("kernel", "define", 64, 2)
TILED = TensorMap("map_A", "A", "bfloat16", (64, 8), (128,), (64, 8), 128)
IMAGE = TensorMap("map", "A", "int8", (16, 4, 4, 1), (16, 64, 256), PixelBox((0, 0), (-1, -1), 16, 8), 0, (1, 2, 2, 1))
LAUNCH = Launch("k_0", (1, 1, 1), (32, 1, 1), (TILED, "A", IMAGE, "C"), 0)
GPUS = GpuSource("k", "cuda", "//", (LAUNCH,), ("A",), ("C",), (("w", 8),), True)
MESSAGES = (
    Done(1),
    Rate(1, 2.5),
    Failed(1, "crash", "signal 11"),
    Build(1, PROCESSORS, "/x.o"),
    Hold(1, 2, "/x.o", PROCESSORS),
    Hold(1, 2, "/x.o", GPUS),
    Measure(1, 2, 0.1, None),
    Setup(1, "run", parse_target("cpu"), 1 << 30),
)
ODD = (None, True, -1, 2**70, 10**400, 1.5, 1e999, "", "\ud800", "x" * 10_000, [], {}, [[[]]], {"id": 1}, *KINDS)


def bent(rng: random.Random) -> bytes:
    """A message with other fields, or with values of other kinds."""
    message = json.loads(encode(rng.choice(MESSAGES))[4:])
    for _ in range(rng.choice([1, 1, 3])):
        name = rng.choice([*message, "fault", "zz"])
        if rng.random() < 0.2:
            message.pop(name, None)
        else:
            message[name] = rng.choice(ODD)
    return json.dumps(message).encode()


def broken(rng: random.Random) -> bytes:
    """A message with bytes changed, added and taken away."""
    body = bytearray(encode(rng.choice(MESSAGES))[4:])
    for _ in range(rng.choice([1, 4, 20])):
        at, kind = rng.randrange(len(body) + 1), rng.randrange(5)
        body[at : at + (1, 0, 0, 0, 6)[kind]] = (rng.randbytes(1), rng.randbytes(3), b"[" * 990, b"9" * 4400, b"")[kind]
    return bytes(body)


@pytest.mark.parametrize("make", [bent, broken])
def test_a_body_is_a_message_or_a_protocol_error(make: Callable[[random.Random], bytes]) -> None:
    rng = random.Random(5)
    n_read = 0
    for _ in range(3_000):
        try:
            message = decode(make(rng), KINDS)
        except ProtocolError:
            continue
        n_read += 1
        encode(message)[4:].decode()
        for text in vars(message).values():
            if isinstance(text, str):
                text.encode()
    assert n_read > 0


def test_a_source_is_of_one_kind_or_the_other() -> None:
    for source in (PROCESSORS, GPUS):
        assert decode(encode(Build(1, source, "/x.o"))[4:], REQUESTS).source == source
    body = json.loads(encode(Build(1, GPUS, "/x.o"))[4:])
    for wrong in (None, "define", {**body["source"], "ir": ""}, {**body["source"], "launches": [{}]}):
        with pytest.raises(ProtocolError, match=r"Build\.source"):
            decode(json.dumps({**body, "source": wrong}).encode(), REQUESTS)
    with pytest.raises(ProtocolError, match="a worker for KernelSource got GpuSource"):
        source_as(KernelSource, Build(1, GPUS, "/x.o"))


def test_half_a_surrogate_pair_is_no_text() -> None:
    body = json.dumps({"kind": "Failed", "id": 1, "fault": "crash", "message": "\ud800"}).encode()
    with pytest.raises(ProtocolError, match=r"Failed\.message is not Unicode"):
        decode(body, REPLIES)


def test_a_stream_cut_anywhere_gives_the_same_frames() -> None:
    stream = b"".join(encode(m) for m in MESSAGES)
    for seed in range(50):
        rng, frames, found, at = random.Random(seed), Frames(), list[bytes](), 0
        while at < len(stream):
            size = rng.randrange(1, 200)
            frames.feed(stream[at : at + size])
            at += size
            while (body := frames.next()) is not None:
                found.append(body)
        assert [decode(body, KINDS) for body in found] == list(MESSAGES)
    frames = Frames()
    frames.feed((MAX_FRAME + 1).to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="over the limit"):
        frames.next()
