"""Verification of networks: outputs and each kernel against the reference, in a forked process.

verify         the comparisons and their report; tolerances: error metric and tolerance
sample_inputs  inputs that follow from the graph; isolation: calls of machine code in a forked process
onnx_runtime   onnxruntime as a second reference
"""
