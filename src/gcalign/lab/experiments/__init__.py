"""Every table and figure of the paper: what to run, what to measure, how to draw it from the result files alone."""
