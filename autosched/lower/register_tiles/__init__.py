"""Register tiles: the plan of how each one of a concrete nest is computed, which code generation carries out."""
