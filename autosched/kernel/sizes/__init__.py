"""Kernels of sizes that are known at a call.

variants        code by the guards of sizes, of kernels of networks and of the user's
sized_kernel    the kernel of a workload for ranges of its numbers
description     its variants as data that can be printed
stored          schedules of records of exact sizes for their classes
tuning          searches for a schedule of each class
"""
