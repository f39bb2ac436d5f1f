"""Fusion of nodes into kernels.

node_properties    what an expression of a node says: its kind, its accesses, its operations
cost               computing a node again against storing its result
partition          groups of nodes, a kernel each
candidates         chains of groups that one kernel may compute
choice             a chain fused into one kernel or unfused, with the predicted latency of both

Decisions that were measured in the running network are records of the database (`store.FusionDecision`).
"""
