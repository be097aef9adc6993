"""Losses for other people's loops. Each has the name, the arguments and the call of the class that it replaces.

`openclip.ClipLoss`, `metric_learning.SupConLoss` and `lightly.NTXentLoss` take `method=` in addition, and without it
compute what the original computes. None of the three libraries is needed.
"""
