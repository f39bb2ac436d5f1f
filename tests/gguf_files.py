"""Random weights in the blocks of GGUF files."""

from __future__ import annotations

import numpy as np

# The bytes of a block, and where its float16 scales begin.
LAYOUTS = {"Q4_0": (32, 18, (0,)), "Q8_0": (32, 34, (0,)), "Q4_K": (256, 144, (0, 2)), "Q6_K": (256, 210, (208,))}


def random_blocks(rng, name, rows, depth, scale=0.02):
    """uint8[rows, bytes] of random codes, with scales of about `scale`."""
    elements, nbytes, scales = LAYOUTS[name]
    blocks = rng.integers(0, 256, (rows, depth // elements, nbytes), dtype=np.uint8)
    for at in scales:
        numbers = (rng.uniform(0.5, 1.5, blocks.shape[:2]) * scale).astype("<f2")
        blocks[:, :, at : at + 2] = np.ascontiguousarray(numbers[..., None]).view(np.uint8)
    return blocks.reshape(rows, depth // elements * nbytes)


def write_model(path, architecture, metadata, tensors):
    """Write a file with the package gguf. `metadata`: of the architecture, without its name; `tensors`: arrays by name,
    or a pair of the name of a format and blocks."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = f"{architecture}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            kind, blocks = tensor
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
