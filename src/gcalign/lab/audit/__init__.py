"""`gcalign audit`: which pairs are wrong, from files or from a run."""
