"""Python functions: imported and called in Spark's Python workers, with values of the model.

They run in processes of their own, because a function of a user may block, use up memory or crash.
"""
