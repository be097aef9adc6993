"""Pages that show what was run."""
