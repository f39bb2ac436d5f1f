"""Networks with random weights, each as one program of ours against the runtimes that users have.

    python -m experiments.networks [NETWORK ...] [--threads 1,2] [--resume] [--out results.json]

Each contestant has a process of its own that loads the network once, with as many threads, and then times blocks of
calls on request; all take turns in rounds, forwards and backwards. Results are compared with eager PyTorch's before
anything is timed. ONNX Runtime and OpenVINO get the file that torch.onnx.export makes. With `--tune 2m` ours takes part
once more, tuned before for so long, with `--winograd` a third time. A network's name with `_int8` behind it is the
network as bytes, quantised by ONNX Runtime; it has a file alone, and ONNX Runtime is who results are compared with.
With `--peer-python` TVM's MetaSchedule is tuned for `--trials`, once, and takes part as well. A row has besides

  kernels_s   our kernels alone, each in a compiled loop and as often as the network has it, timed in turn
  network_s   the network timed in turn with them, from Python
  bound_s     for each kernel the longer of its operations at the measured peak of float32 and its inputs and outputs
              once at the bandwidth of reading as many bytes: no program of these kernels can be faster
  load_s      until the network can be called; of ours with an empty cache (cold) and once more (warm)
"""
