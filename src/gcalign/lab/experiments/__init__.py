"""Experiments, one module each: `paper` has its tables and figures, `studies` ours; `engine` knows none of them."""
