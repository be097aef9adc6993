"""Measurements: ratios against a named baseline, medians of several, in one run."""
