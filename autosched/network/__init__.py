"""A network as one native program.

load        what users call a network, as a graph
tasks       its kernels, those that compute the same as one task
program     kernels, the plan of the arena, and where weights lie
model       the program linked, its weights packed: a function of arrays
dynamic     networks whose sizes vary, by varying: a program for each choice, with the schedules of the nearest one
records     the schedules that were measured before, for its tasks
room        whether this machine has the memory for it

check       outputs and each kernel against the reference, on inputs that `inputs` makes; closeness: error metric and
            tolerance
explain     each kernel's time, which `profile` finds, against the machine's limits
pictures    graph, kernels and arena as text
verbs       what of these `autosched.api` offers

turns            of its tasks: which is worth another round of measurements; standing: how far one is; strategies,
                 objectives: tables of what decides it
shared_tasks     kernels that several networks have; task_search: one task's search; place: what all share
network_search   the turns of all tasks; closing: what the end takes; contest: whole networks timed side by side
tune             all of it; tuned: what it leaves behind; fallback: the last program that passes verification
improve          a faster program for one that runs, at once or beside it

dynamo      torch.compile(model, backend="autosched"): its graphs by torch_graphs, their parts by torch_part
"""
