"""From a graph to an execution plan: its kernels, which of them are fused, and the plan of its memory.

extract_tasks      kernels of a network; steps that compute the same share one task
fusion_candidates  chains of reductions that one kernel may compute
fusion_choice      a chain fused into one kernel or unfused, with the predicted latency of both
predicted_latency  the analytic model's seconds of fused and unfused kernels
fusion_records     fusion decisions by measurement, in the record database
execution_plan     steps, their kernels, homes of values, offsets of weights
kernel_table       the kernels of a network as a table
archive            a network with its schedules as one file
"""
