"""Detection of model file formats by their first bytes, for messages about files that cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ARCHIVE = ".asc"  # suffix of networks that autosched saved
ACCEPTED = (
    "a network is an ONNX file, one saved as *.asc, a program that torch.export.save wrote as *.pt2, or a language "
    "model as *.gguf; in Python also a torch module with example_inputs, an ExportedProgram or a Graph"
)
_CONVERT = "load it where it comes from, and export it by torch.export or torch.onnx.export"
_PICKLE = f"a pickle, as old versions of torch.save wrote, which is never read: {_CONVERT}"
_WEIGHTS = f"has weights without a graph: {_CONVERT}"

# Descriptions by the first bytes of a file.
_MAGIC: Mapping[bytes, str] = {
    b"GGUF": "a GGUF file of llama.cpp: name it *.gguf",
    b"ggjt": f"a GGML file of llama.cpp, which {_WEIGHTS}",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras saves models: convert it by tf2onnx",
    b"\x93NUMPY": "one array of NumPy",
    b"\x7fELF": "a compiled library, which runs without autosched",
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself: fetch it by `git lfs pull`",
    b"<!DOCTYPE html": "a web page: the download went wrong",
    b"<html": "a web page: the download went wrong",
    b"<?xml": "an XML file, as OpenVINO has for its own networks: start from what it was converted from",
    b"\x1f\x8b": "packed by gzip: unpack it first",
    b"BZh": "packed by bzip2: unpack it first",
    b"\xfd7zXZ\x00": "packed by xz: unpack it first",
    **{bytes([0x80, n]): _PICKLE for n in range(2, 6)},
}
_AT_4: Mapping[bytes, str] = {
    b"TFL3": "a TFLite file: convert it by tf2onnx --tflite",
    b"ORTM": "a file of ONNX Runtime's own format: start from the ONNX file that it was made of",
}


def describe_format(path: Path) -> str:
    """Return a noun phrase for the format of a file or folder, with a remedy; empty for an unknown format."""
    if path.is_dir():
        return _folder(path)
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError:
        return ""
    if head[:4] == b"PK\x03\x04":
        return _archive(path)
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= path.stat().st_size - 8:
        return f"a safetensors file, which {_WEIGHTS}; a network that autosched saved is called *.asc"
    description = next((what for magic, what in _MAGIC.items() if head.startswith(magic)), None)
    return description or _AT_4.get(head[4:8], "")


def has_program(names: Sequence[str]) -> bool:
    """Whether the names in a zip archive are those of a file that torch.export.save wrote."""
    return _any(names, lambda name: name.endswith("/archive_format")) and _any(names, _is_model)


def _is_model(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder.split("/")[-1] == "models" and file.endswith(".json")


def _any(names: Sequence[str], holds: Callable[[str], bool]) -> bool:
    return any(map(holds, names))


# Descriptions of zip archives by the names of the files in them; the first match counts.
_ARCHIVES: Sequence[tuple[Callable[[Sequence[str]], bool], str]] = (
    (has_program, "a program that torch.export.save wrote: name it *.pt2"),
    (
        lambda names: _any(names, lambda name: "data/aotinductor/" in name),
        "a package of AOTInductor, which is compiled code: save the program itself by torch.export.save",
    ),
    (
        lambda names: "serialized_exported_program.json" in names,
        "a program that torch.export.save of PyTorch 2.8 or older wrote: load it there, and save it with a newer one",
    ),
    (
        lambda names: _any(names, lambda name: "/code/" in name and name.endswith(".py")),
        "a TorchScript archive: export the module that it was made of by torch.export",
    ),
    (lambda names: _any(names, lambda name: name.endswith("/data.pkl")), f"a file of torch.save, which {_WEIGHTS}"),
    (lambda names: _any(names, lambda name: name.endswith(".npy")), "a file of NumPy arrays, as --inputs takes them"),
    (lambda names: "model.weights.h5" in names, "a Keras archive: export it by model.export(path, format='onnx')"),
)  # fmt: skip


def _archive(path: Path) -> str:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return "a damaged or truncated zip archive"
    return next((what for fits, what in _ARCHIVES if fits(names)), "a zip archive: unpack it first")


def _folder(path: Path) -> str:
    if (path / "saved_model.pb").exists():
        return "a SavedModel of TensorFlow: convert it by tf2onnx --saved-model"
    if (path / "config.json").exists():
        return f"a folder of a model's weights and settings: {_CONVERT}"
    return "a folder: name the file within"
