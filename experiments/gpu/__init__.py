"""A few minutes on a GPU, in steps: what the card is and can do, whether its instructions do what the simulator says,
which form of kernel is fast, what the cost model gets wrong, and how tuned kernels compare with PyTorch and Triton.

    experiments/gpu/run.sh --steps facts,instructions,ladder --minutes 5 [--dry] [--out DIR]
    experiments/gpu/run.sh --minutes 9 [--target cuda|opencl] [--quick] [--out DIR]

Each step runs in a process group of its own under a deadline, says first what it expects, and stops no other. Rows are
in `DIR/card.json` (default experiments/results/gpu/) as soon as they are known, what processes print in `DIR/card.log`.
`--dry` runs every step without a card, at tiny shapes on the simulator. The steps are listed below; the default is the
scoreboard.

The scoreboard verifies all operators of the registry on the device, at small shapes with random candidates of every
sketch; tunes the cases of `cases.CASES`, the most telling first; times each against its peers in one process,
interleaved; and prints the table last. Every finished part is in `DIR/<target>.json` at once, and the next call with
the same DIR goes on behind it, so a killed run loses one part, and an hour's work may be done in slices. Nothing else
may run on the device meanwhile.

Peers: PyTorch eager (cuBLAS, cuDNN; TF32 off, cudnn.benchmark on), the better of two forms: convolutions in
channels_last and in NCHW, products with and without their batch of one; torch.compile with max-autotune; a Triton
matrix product and softmax. All contestants are timed by events around CUDA
graphs that go round as many copies of the data as exceed the last cache, in an order that alternates; torch.compile
therefore runs without graphs of its own ("max-autotune-no-cudagraphs"). Every contestant's result is compared with the
float64 reference under the bound that our own kernels are held to. A peer that is missing or fails is recorded with its
reason. torch.compile takes up to a minute a case, so it comes in a second pass, when all cases have a result.

On a machine without network
    It needs Python 3.10 or later, NumPy, and for CUDA: cuda-bindings and NVRTC (nvidia-cuda-nvrtc) or nvcc, llvmlite,
    networkx, rich, xgboost; PyTorch with Triton for the peers. What it lacks is carried as wheels in the folder `.whl`
    at the top of the repository (or AUTOSCHED_WHEELS=DIR), from which run.sh installs into a temporary folder:

        pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \\
            -d .whl xgboost-cpu

    (6 MB; add any of llvmlite networkx rich cuda-bindings cuda-core cuda-pathfinder that is missing there.) The driver
    pycuda has no wheels; its source is built there, in minutes, when AUTOSCHED_CUDA_DRIVER=pycuda asks for it:

        pip download --no-deps --no-binary=pycuda -d .whl pycuda
        pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 -d .whl \\
            pytools mako siphash24 platformdirs

    Otherwise what is measured is the driver cuda-core. Results come back as `DIR/cuda.json` and `DIR/records.db` (the
    tuned records); take both along to the next machine to go on there.

Here, without a GPU: `experiments/gpu/run.sh --target opencl --minutes 2 --quick` runs the whole script on PoCL, without
the peers, which need CUDA.
"""
