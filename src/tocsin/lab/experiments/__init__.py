"""Experiments: declared, run in parallel, saved, plotted and judged."""
