"""The scoreboard on the CPU: autosched against PyTorch, NumPy and TVM MetaSchedule, and against the machine.

    python -m experiments.scoreboard [c2d:1 gmm ...] [--batch 1,16] [--threads 1,2] [--trials 64] [--quick] [--resume]
        [--peer-python TVM/bin/python] [--budget S] [--out results.json]

Each case (a benchmark shape, a batch, a number of threads) is tuned in a fresh process with a fresh database. Then its
contestants run in fresh processes of their own, on the same float32 inputs and as many threads, in turn: a block of at
least 50 ms each, the order alternating from round to round, with a rest before a block in which the pools of the others
go to sleep. What is reported is the median over the rounds, with an interval. The peak of fused multiply-adds is the
best that is measured before and after. Reading as many bytes as the case must move (so from L2, L3 or DRAM) is timed in
the same rounds, and its bandwidth is by the median as well: a share compares like with like. Every contestant is given
as a share of the roofline that the two make, which counts each input and output once. The rate of multiply-adds by the
median of the same rounds is recorded beside them (`fma_gflops`): it says what the peak was worth in those minutes.

Contestants
    autosched       its best kernel after --trials, timed in a compiled loop, as MetaSchedule's is
    autosched.call  the same kernel called from Python, as PyTorch and NumPy are; these are compared with it. Each call
                    makes its result anew, as PyTorch's do; NumPy's write into memory that is kept, where they can
    torch           PyTorch eager in the layout that it likes best: channels_last images, weights in its order, all
                    brought there outside of the timing
    torch.compile   the same function through TorchInductor
    numpy           where one call does it
    metaschedule    TVM MetaSchedule after as many trials, with --peer-python

With --weights, convolutions take part a second time, on both sides with their weights packed ahead of time, which is
not timed: autosched.weights against torch.prepacked (oneDNN's blocked weights, a batch normalisation folded in).
These are reported apart, since the others pack at each call, where they pack. With --winograd, 3x3 convolutions of
stride 1 take part with Winograd's algorithm too: autosched.winograd against torch, apart because its error is larger.

Every peer's result is compared with ours; one that differs, fails or is missing has no time, and the file says why.
The best peer of a case is the one with the smallest ratio of times, its time over ours, called in the same way.

MetaSchedule needs a virtual environment with TVM and without PyTorch, which TVM would import in each of its workers at
the cost of seconds each and of candidates that miss their deadline: `pip install "autosched[metaschedule]"`. It takes
minutes a case, so its best kernel is kept in a cache, by processor, threads, trials and seed; its time is always
measured anew.

Results are in one JSON file, written again after each case: a run may be done in pieces, a run of one more case adds to
it, and --resume skips what is done. A case in which the peak of the processor was low, or our interval wide, was
disturbed by other work: it is listed, and --resume measures it again. The table and the chart (a PNG beside the file)
are of the whole file; --report makes them without measuring. Run it on a machine that does nothing else.
"""
