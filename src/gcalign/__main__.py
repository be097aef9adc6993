"""`python -m gcalign`: the command, without the current folder on the path."""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # `python -m` puts the current folder first, where a file would stand in for any module

from gcalign.cli import main

sys.exit(main())
