"""`gcalign report`: the runs of a folder, and results that were drawn from such runs, as one page."""
