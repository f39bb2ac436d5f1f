"""Runs a loop nest statement by statement: the oracle of the tests. The product never calls it."""
