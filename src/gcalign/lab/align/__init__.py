"""`gcalign align`: two files of embeddings, a few pairs; heads, aligned embeddings and a page."""
