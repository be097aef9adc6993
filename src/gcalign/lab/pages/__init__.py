"""HTML pages: templates, scripts, pictures small enough to travel inside a page."""
