"""The command line: one small file for each verb, joined by `main`."""
