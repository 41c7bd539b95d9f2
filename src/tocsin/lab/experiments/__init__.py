"""Experiments: declared, run in parallel, saved, plotted and judged.

An experiment is declared as data, so that one runner saves, resumes, plots and judges all of them.
"""
