"""Data sets, views and corruptions."""
