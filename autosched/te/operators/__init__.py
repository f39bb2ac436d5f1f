"""The built-in operators, and the table of their names."""
