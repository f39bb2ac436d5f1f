"""GGUF files: what they hold is mapped, and damaged ones are refused in a sentence."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from autosched.errors import GraphError
from autosched.graph.gguf.reader import read_gguf
from autosched.graph.mapped_arrays import mapped_range
from tests.gguf_files import write_model

gguf = pytest.importorskip("gguf")


@pytest.fixture
def path(tmp_path):
    numbers = np.arange(70, dtype="float32").reshape(2, 35)
    blocks = np.arange(2 * 36, dtype=np.uint8).reshape(2, 36)
    metadata = {"name": "Zoé", "count": 3, "scale": 0.5}
    write_model(tmp_path / "m.gguf", "llama", metadata, {"a": numbers, "b": ("Q4_0", blocks), "c": numbers[0]})
    return tmp_path / "m.gguf"


def test_metadata_and_tensors(path):
    file = read_gguf(path)
    assert {key: file.metadata[f"llama.{key}"] for key in ("name", "count", "scale")} == {
        "name": "Zoé", "count": 3, "scale": 0.5,
    }  # fmt: skip
    a, b, c = (file.tensors[name] for name in "abc")
    assert (a.shape, b.shape, c.shape, a.block, b.block) == ((2, 35), (2, 64), (35,), None, "Q4_0")
    np.testing.assert_array_equal(a.array, np.arange(70).reshape(2, 35))
    np.testing.assert_array_equal(b.array, np.arange(72).reshape(2, 36))
    assert mapped_range(b.array) is not None


def test_every_type_of_metadata(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    numbers = {"u8": (gguf.GGUFValueType.UINT8, 255), "i8": (gguf.GGUFValueType.INT8, -1)}
    numbers |= {"i64": (gguf.GGUFValueType.INT64, -(2**40)), "f64": (gguf.GGUFValueType.FLOAT64, 0.1)}
    numbers |= {"flag": (gguf.GGUFValueType.BOOL, True)}
    for name, (kind, value) in numbers.items():
        writer.add_key_value(name, value, kind)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("scores", [0.5, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf(tmp_path / "m.gguf").metadata
    assert {name: metadata[name] for name in numbers} == {name: value for name, (_, value) in numbers.items()}
    assert metadata["words"] == ("a", "bc", "")
    assert metadata["scores"] == (0.5, -1.0)


def test_truncated_at_every_byte(path):
    whole = path.read_bytes()
    read_gguf(path)
    for length in range(0, len(whole) - 1, 3):
        path.write_bytes(whole[:length])
        if length >= len(whole) - 32:  # padding after the last tensor
            continue
        with pytest.raises(GraphError, match=r"damaged: it (ends|does not begin)|damaged: the tensor . ends at byte"):
            read_gguf(path)


def test_any_changed_byte_is_read_or_refused(path):
    whole = path.read_bytes()
    messages = []
    for at in range(4, whole.index(b"\0\0\0\0\0\0\x80?")):
        for value in (0, 1, 0x7F, 0xFF):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                read_gguf(path)
            except GraphError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all(message.startswith(str(path)) and "\n" not in message for message in messages)


def header(tensors=(), metadata=b"", n_metadata=0, version=3):
    made = b"GGUF" + struct.pack("<IQQ", version, len(tensors), n_metadata) + metadata
    for name, shape, kind, offset in tensors:
        made += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        made += struct.pack("<IQ", kind, offset)
    return made + bytes(64)


def key(name, kind, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it does not begin with GGUF"),
        (b"PK\3\4" + bytes(40), "it does not begin with GGUF"),
        (header(version=1), "its version is 1, where versions 2 and 3"),
        (header(version=3 << 24), "its numbers are big-endian"),
        (header([(b"a", (2**61,), 0, 0)]), "the tensor a ends at byte"),
        (header([(b"a", (2**33, 2**33, 2**33), 0, 0)]), "the tensor a ends at byte"),
        (header([(b"a", (4, 0), 0, 0)]), "the tensor a has a dimension of size 0"),
        (header([(b"a", (1,) * 5, 0, 0)]), "the tensor a has 5 dimensions, where 4 are the most"),
        (header([(b"a", (33,), 2, 0)]), r"the tensor a of shape \[33\] has no whole blocks of 32"),
        (header([(b"a", (4,), 0, 8)]), "begins at byte 8, which is no multiple of 32"),
        (header([(b"a", (4,), 0, 0), (b"a", (4,), 0, 0)]), "it has the tensor a twice"),
        (header([(b"a", (256,), 13, 0), (b"b", (4,), 99, 0)]), r"not supported: a \(Q5_K\), b \(type 99\); supported"),
        (header([], key(b"k", 4, b"\1\0\0\0") * 2, 2), "it has the metadata k twice"),
        (header([], key(b"k\n", 4, b"\1\0\0\0"), 1), "the name at byte 24 is no text of at most 256 characters"),
        (header([], key(b"k", 77, b""), 1), "the metadata k is of the unknown type 77"),
        (header([], key(b"k", 9, struct.pack("<IQ", 9, 1)), 1), "is an array of the unknown type 9"),
        (header([], key(b"k", 9, struct.pack("<IQ", 8, 2**62)), 1), "it ends at byte"),
        (header([], key(b"general.alignment", 4, struct.pack("<I", 48)), 1), "its alignment is 48"),
    ],
)
def test_damaged(data, reason, tmp_path):
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(GraphError, match=reason):
        read_gguf(tmp_path / "m.gguf")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "m.gguf")
