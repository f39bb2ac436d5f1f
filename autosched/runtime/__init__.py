"""Machine code in this process: compiling and loading, the thread pool, arrays at the border, peak rates."""
