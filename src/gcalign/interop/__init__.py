"""Losses for other people's loops. Each has the name, the arguments and the call of the class that it replaces.

`openclip.ClipLoss`, `metric_learning.SupConLoss` and `NTXentLoss`, `lightly.NTXentLoss` and
`sentence_transformers.AlignmentLoss` take `method=` in addition, and without it, or with "ince" for the last, compute
what the original computes. None of the libraries is needed; where pytorch-metric-learning or sentence-transformers is
installed, the module of that name uses its base class. `caching.cached_backward` is for a loop of one's own: it trains
with a large batch in the memory of a small one.
"""
