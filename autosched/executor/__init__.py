"""Executor of networks: loading, compiling and calling them.

load, load_dynamic  the graph of a file or module; a model with dynamic shapes
compile_graph       a graph as a model; memory_check: whether the machine has enough memory
model_cache         the second load of an ONNX file, without import and planning
model               a callable network; cpu_model, gpu_model: on a processor, on a GPU
dynamic_model       dynamic shapes: a program for each choice of sizes
partitioned_model   a model in parts; parts: programs, branches, loops; fallback: nodes run by another engine
constant_kernels    constant folding at load time
profile, gpu_timer  the time of each kernel; kernel_origin: the source node of a kernel
"""
