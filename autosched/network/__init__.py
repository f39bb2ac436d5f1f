"""A network as one native program.

load        what users call a network, as a graph
tasks       its kernels, those that compute the same as one task
program     kernels, the plan of the arena, and where weights lie
model       the program linked, its weights packed: a function of arrays
records     the schedules that were measured before, for its tasks
dynamo      torch.compile(model, backend="autosched")
"""
