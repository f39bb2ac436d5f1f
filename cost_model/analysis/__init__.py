"""Static analysis of a symbolic nest: statements, trip counts, accesses and operations as closed forms."""
