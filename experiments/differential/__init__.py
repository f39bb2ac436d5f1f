"""Differential testing of whole ONNX models: autosched and ONNX Runtime compute the same inputs.

children   one task in a forked process with a deadline: a crash and a hang are verdicts
peer       the reference: ONNX Runtime, else the reference evaluator of the package onnx
judge      the comparison of outputs, and which differences are rounding or undefined by the standard
trial      one model: loaded once, called many times with fresh inputs and guarded `out=` arrays
"""
