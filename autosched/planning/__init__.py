"""From a graph to an execution plan: its kernels, and the plan of its memory.

extract_tasks      kernels of a network; steps that compute the same share one task
predicted_latency  the analytic model's seconds of groups of nodes, for the choice between fused and unfused kernels
execution_plan     steps, their kernels, homes of values, offsets of weights
device_passes      passes over a graph for a kind of device
kernel_table       the kernels of a network as a table
archive            a network with its schedules as one file
"""
