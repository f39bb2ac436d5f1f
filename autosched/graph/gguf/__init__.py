"""Language models in GGUF files, the format of llama.cpp, with weights of few bits.

read_gguf(path)            metadata and tensors, mapped                                     `reader`
hyperparameters(file)      sizes and constants, by the tables of `architectures`            `hyperparameters`
load_gguf(path, sizes)     the graph of a decoder with caches                               `decoder`
"""

from autosched.graph.gguf.decoder import load_gguf

__all__ = ["load_gguf"]
