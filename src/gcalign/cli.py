"""The command `gcalign`: parses, then calls one function."""


def main() -> None:
    """Placeholder until verify lands."""
