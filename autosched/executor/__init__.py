"""Networks that run: loaded, compiled, called.

load, load_dynamic  from what users name to a graph or a model whose sizes vary
lookup              stored schedules of a network's kernels
compile_graph       from a graph to a model; memory_check: whether the machine has the memory
model               a function of arrays: on a processor by cpu_model, on a GPU by gpu_model
dynamic_model       a program for each choice of sizes
constant_kernels    kernels of constants alone, run once at load
profile, gpu_timer  the time of each kernel; kernel_origin: the node that it comes from
"""
