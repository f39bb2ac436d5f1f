"""The reference interpreter of loop nests, statement by statement: the tests' oracle, never used by the product."""
