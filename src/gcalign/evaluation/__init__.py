"""Protocols that turn frozen features into an accuracy."""
