"""Vector functions of real numbers in LLVM IR: exponentials, logarithms and others, by polynomials and tables."""
