"""Our own experiments: each module has its question, its plan, written before the runs, and every change of it."""
