"""Keeps calls from taking unbounded time or memory: limits of arguments, and functions of our own that count steps."""
