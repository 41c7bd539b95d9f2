"""Functions in Python: looked up and called in Spark's Python workers, with values of the model."""
