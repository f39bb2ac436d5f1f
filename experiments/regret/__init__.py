"""Regret of the analytic model: what its choice takes over the fastest of measured candidates, 1 at best.

    python -m experiments.regret --pairs 40 --candidates 64 --threads 1
    python -m experiments.regret --target "llvm -mcpu=haswell" --out avx2.json --resume
    python -m experiments.regret --cases "linear+gelu M=1500 N=1536 K=384 weights"
    python -m experiments.regret --pipelines 20

The choice is the kernel that `autosched.compile` takes without records. Its competitors are --candidates, by default
256: half of them the best predicted, spread over all sketches, the others chosen by a search that learns from the times
of the first. Each is timed alone; the choice and the fastest others are then timed again, interleaved. Regret is the
time of the choice over the least of these times. Results of all must agree with the choice's.

Subjects are drawn from a seed: single operators with random sizes (`operators.py` has the distribution), with
--pipelines random pipelines of 2 to 10 stages, with --programs those of `experiments.pipelines`. A result file keeps
the fastest candidates of each subject: --again measures today's choice beside them, which takes seconds for a subject.

operators.py   operators and sizes that are drawn
pipelines.py   random pipelines and programs as subjects
measure.py     the candidates of a subject and their times
"""
