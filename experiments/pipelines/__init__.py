"""Pipelines of stages beside Halide: each program is written once and read by te, by Halide and by NumPy.

makers.py     what a program is written with, for te and for NumPy, in float64
programs.py   the programs
halide.py     the same for Halide, with its autoschedulers and a schedule by hand
"""
