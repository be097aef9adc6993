"""`gcalign.align`: two frozen encoders and a few pairs; heads that map both into one space."""
