"""Language models in GGUF files, the format of llama.cpp, with weights of few bits.

read_gguf(path)            metadata and tensors, mapped                                  `reader`
hyperparameters(file)      sizes and constants, by the table of `architectures`          `hyperparameters`
load_gguf(path, sizes)     the graph of a decoder with caches                            `decoder`
input_shapes(path)         its inputs, with names for the sizes that may be chosen       `decoder`
"""

from autosched.graph.gguf.decoder import input_shapes, load_gguf

__all__ = ["input_shapes", "load_gguf"]
