"""Register tiles as LLVM IR: windows, rolling accumulators, tile registers, transposition, prefix scans."""
