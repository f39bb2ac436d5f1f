"""Rules of operators of machine learning: features of rows, ensembles of trees, and steps of optimisers."""
