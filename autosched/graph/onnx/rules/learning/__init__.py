"""Rules of operators of classical machine learning: features of rows, linear models, and ensembles of trees."""
