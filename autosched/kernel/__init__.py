"""One kernel: what is asked for, its schedule, its code, and where that is kept.

device, request   what a kernel is made for, and a workload for it
task              a request as what is searched: its sketches and the cost model over them
measuring         the measurer of one kernel: its data and workers
spec              a kernel of a network as data: what it computes, its schedule, its compiled form
lookup            the schedule of a kernel: its best record, else the best by the analytic model
transfer          schedules of kernels that differ in sizes alone
trust             whether a record's kernel may be loaded: verified by this installation
simulation        CUDA kernels that are verified without a GPU
index_checked     kernels whose calls check indices first

build             a specification as code, by the analytic model where it has no schedule
pool              processes that compile kernels in parallel, each of them a pool_worker
compilation_units parts of kernels that are compiled once for all kernels that have them
object_cache      compiled kernels and schedules in the disk cache (`runtime/disk_cache.py`)
versions          what keys of the cache depend on
gpu_kernel        sources for GPUs as the cache keeps them

roofline          a kernel against the limits of its device; measured_roofline: these limits, for networks
"""
