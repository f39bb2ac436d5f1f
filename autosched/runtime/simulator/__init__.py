"""Generated CUDA C executed on the processor: g++ compiles the text against headers in `native/`, where a block's
threads are fibers, shared memory is an arena, and PTX instructions are functions.

It is part of the package, and not of the tests, because a search without a GPU verifies its candidates with it.
What runs is the protocol: barriers, copies under way, who reads what when. Not modelled: time, registers, and orders
of memory weaker than what barriers say.
"""
