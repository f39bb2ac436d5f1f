"""GPU simulator: generated CUDA C executed on the processor. g++ compiles the text against headers in `native/`, where
the threads of a block are fibers, shared memory is an arena, and PTX instructions are functions.

It is a part of the package because a search without a GPU verifies its candidates with it. It models barriers,
asynchronous copies, early launches and the order of memory accesses; not time, registers, or memory orders weaker than
barriers. What nvcc may move, which no execution here shows, is found in the text (`flaws.py`).
"""
