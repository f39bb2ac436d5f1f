"""What a symbolic nest does: statements, trips, accesses and operations as closed forms."""
