"""Encoders, heads and the momentum twin."""
