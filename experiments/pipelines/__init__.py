"""Pipelines of stages beside Halide and OpenCV: each program is written once, for te, Halide and NumPy.

    python -m experiments.pipelines --programs harris,unsharp --threads 1,2 --trials 64

Ours runs untuned and tuned; Halide (the extra `halide`) with three autoschedulers and a schedule by hand, the fastest
of several; OpenCV where it is installed and has the function. Every result is compared with NumPy's in float64 before
times are taken, interleaved in one process for each program. The compulsory traffic of a program is its inputs read
once and its output written once.

makers.py     what a program is written with, for te and for NumPy
programs/     the programs
halide_maker.py, schedules.py, opencv.py    the peers
"""
