"""From a graph to an execution plan: its kernels, which of them are fused, and the plan of its memory.

extract_tasks      kernels of a network, those that compute the same as one task
fusion_candidates  chains of reductions that may be one kernel
fusion_choice      which form the plan begins with, one kernel or several
predicted_latency  the analytic model's seconds of both forms
fusion_records     decisions that measurements have made, in the record database
execution_plan     steps, their kernels, homes of values, and where weights are kept
kernel_table       the plan as a table
archive            a network with its schedules as one file
"""
