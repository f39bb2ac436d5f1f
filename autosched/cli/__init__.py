"""Command line: a module for each verb, and `main`, which runs them."""
