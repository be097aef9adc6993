"""Mismatched pairs, found: `gcalign.audit(a, b)`."""
