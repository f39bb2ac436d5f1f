"""Random ONNX models of a peer's fuzzer, NNSmith, and mutations of them, against ONNX Runtime.

    pip install nnsmith==0.1.0 onnxruntime torch onnx
    python -m experiments.nnsmith --models 1000 --calls 50 --seed 0

Each model is generated, mutated, loaded and called in a process of its own with a deadline; `experiments.differential`
says how outputs are compared. Verdicts of a model:

    right            every output of every call is within the tolerance
    rounding         the only differences are those that noise of 16 units in the last place makes, too
    undefined        a number is converted to an integer type that does not hold it, which the standard leaves open
    peers disagree   ONNX Runtime and the reference evaluator differ, and ours agrees with the latter
    wrong            anything else that differs, a byte beside an `out=` array, an input that is written over
    crashed, hung    the process died or raised what is no error for users; or had no result within the deadline
    refused          an error for users: a reason, counted
    no model         the fuzzer found none, or neither peer takes it

A mutation adds outputs: intermediates, views of them, concatenations, views of concatenations, repeated outputs, inputs
and constants. Models that are not right are kept as files with `--keep`, and `--seed N --models 1` repeats one.
"""
