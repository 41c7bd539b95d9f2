"""Python functions: imported and called in Spark's Python workers, with values of the model."""
