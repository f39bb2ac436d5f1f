"""Tiles in shared memory and products of matrices, as CUDA C: copy engine, pipelines, warps, warpgroups, clusters."""
