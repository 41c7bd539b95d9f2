"""Experiments: declared, run in parallel, kept, drawn and judged."""
