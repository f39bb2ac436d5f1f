"""One kernel: its request, schedule, code and cache entry.

device            a target with a number of threads
request           a workload and a device; from a schedule to code and to a callable kernel
task              the tuning task of a request: sketches and cost model
measuring         the measurer of a kernel: its data and workers
spec              a kernel of a network as data: workload, schedule, compiled form
lookup            the schedule of a kernel: its best record, else the best by the analytic model
transfer          schedule transfer between kernels that differ in sizes alone
trust             verification of records of other installations before use
simulation        verification of CUDA sources without a GPU
index_checked     kernels whose calls check indices first

build             compilation of a specification, by the analytic model where it has no schedule
pool              processes that compile kernels in parallel, each of them a pool_worker
compilation_units units of kernels, compiled once for all kernels that have them
object_cache      compiled kernels and schedules in the disk cache (`runtime/disk_cache.py`)
versions          the versions of LLVM and autosched in the keys of the cache
gpu_kernel        sources for GPUs as entries of the cache
sizes/            code for sizes that are known at a call, as variants by guards

roofline          the roofline of a device; measured_roofline: that of networks' kernels, measured on demand
"""
