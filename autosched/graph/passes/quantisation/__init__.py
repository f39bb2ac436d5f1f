"""Passes over quantised values: bytes instead of floats, products of integers, packed weights."""
