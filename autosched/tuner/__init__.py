"""Tuner of one task: the search policy and the session around it.

protocols   interfaces of search space, cost model, measurer and recorder
population  scored rows of several sketches, and the selection of candidates
policy      parameters of the search
search      which candidates are measured next
session     rounds, budget, resuming, final comparison; progress: its state
options     options of a workload; definition: the workload with its options, as a graph of stages
task_info   description of a task; task: with its search space; recorder: trials in the database
callbacks   events of a session; result: its outcome
time_bound  lower bound of a kernel's time; memory_check: precondition; gc_pause: Python's garbage collector
"""
