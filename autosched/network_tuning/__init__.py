"""Tuning whole networks: their tasks share one budget.

tune                the whole of it; results: what it returns; budget: seconds that its end takes
search              rounds of all tasks; task_tuner: one task's; shared_tasks: kernels that several networks have
task_scheduler      which task has the next round; task_state: how far one is; strategies, objectives: tables of rules
context             workers, database and clock that all tasks share
undecided_fusion    fusion decisions that the analytic model leaves to a measurement: fusion_comparison
end_to_end          whole networks timed side by side; last_verified: the program that a search ends with
estimate            a network for a device that is not here
background          a faster program for one that runs, made by background_worker
"""
