"""Random calls of the library, each checked against an independent float64 computation.

`python -m fuzz` in the folder `tests` runs them; see `__main__` for its options.
"""
