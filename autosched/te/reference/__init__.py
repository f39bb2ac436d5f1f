"""What a graph computes, by NumPy in float64, with a bound of the error of each element."""
