"""Pairs with real mistakes, from the translations in the source packages of two Debian releases.

`gcalign reproduce table-mistakes` reads the files that this makes. The texts belong to their translators, under the
licences of their packages, so they are not part of gcalign. To make the files again, unpack the same source packages of
an older and a newer release into two folders, one folder for each package, and install polib and pyarrow:

    apt-get source --download-only PACKAGE=VERSION      # in a container of each release, with deb-src lines
    dpkg-source --no-check -x PACKAGE_VERSION.dsc bookworm/PACKAGE
    python -m gcalign.lab.experiments.po_pairs bookworm trixie -o po ro nl fi

When an English message changes, gettext carries over the translation of the old, similar message and marks it *fuzzy*.
A row is a message of the older release, joined with the newer one by package, context and English text. Left out are
obsolete entries, plural forms, messages of fewer than 2 or more than 60 English words, and those that are equal to
their translation. `packages.csv` has the names and versions of what was read.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gcalign.lab import files

COLUMNS = ("package", "english", "translation", "fuzzy", "previous", "later", "corrected", "similarity")
WORDS = (2, 60)  # of an English message


class Message(NamedTuple):
    """A message with its translation in one release."""

    translation: str
    fuzzy: bool
    previous: str


Key = tuple[str, str, str]  # package, context, English


def messages(release: Path, language: str) -> dict[Key, Message]:
    """All translated messages of a release in one language."""
    import polib

    known: dict[Key, Message] = {}
    for package in sorted(path for path in release.iterdir() if path.is_dir()):
        for path in po_files(package, language):
            try:
                catalogue = polib.pofile(str(path), check_for_duplicates=False)
            except (OSError, ValueError, UnicodeDecodeError):  # a broken file costs itself
                continue
            for entry in catalogue:
                words = len(entry.msgid.split())
                usable = entry.msgstr and not entry.msgid_plural and not entry.obsolete and entry.msgid != entry.msgstr
                if usable and WORDS[0] <= words <= WORDS[1]:
                    key = package.name, entry.msgctxt or "", entry.msgid
                    known.setdefault(key, Message(entry.msgstr, entry.fuzzy, entry.previous_msgid or ""))
    return known


def po_files(package: Path, language: str) -> Iterator[Path]:
    """The catalogues of a language: ro.po, program.ro.po, ro/program.po, ro/LC_MESSAGES/program.po."""
    for path in sorted(package.rglob("*.po")):
        folders = {parent.name for parent in list(path.parents)[:2]}
        if path.stem == language or path.stem.endswith(f".{language}") or language in folders:
            yield path


def joined(older: dict[Key, Message], newer: dict[Key, Message]) -> list[dict[str, Any]]:
    """A row for each message of the older release, with what became of it."""
    rows = []
    for (package, context, english), old in older.items():
        new = newer.get((package, context, english))
        later = "gone" if new is None else "open" if new.fuzzy else "kept" if new[0] == old[0] else "changed"
        corrected = new.translation if new is not None and later in ("kept", "changed") else ""
        close = similarity(old.translation, corrected) if corrected else None
        row = (package, english, old.translation, old.fuzzy, old.previous, later, corrected, close)
        rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def similarity(a: str, b: str) -> float:
    """Twice the longest common subsequence over the length of both: 1 for equal texts, 0 for those that share nothing.

    >>> similarity("a better house", "a house"), similarity("abc", "xyz")
    (0.6666666666666666, 0.0)
    """
    where: dict[str, int] = {}
    for k, letter in enumerate(a):
        where[letter] = where.get(letter, 0) | 1 << k
    full = (1 << len(a)) - 1
    row = full  # a zero bit is a step of the subsequence
    for letter in b:
        match = row & where.get(letter, 0)
        row = (row + match) | (row - match)
    common = len(a) - (row & full).bit_count()
    return 2 * common / max(1, len(a) + len(b))


def version(package: Path) -> str:
    """The version of an unpacked source package, from its changelog."""
    path = package / "debian" / "changelog"
    line = path.open(encoding="utf-8", errors="replace").readline() if path.is_file() else ""
    found = re.search(r"\(([^)]+)\)", line)
    return found.group(1) if found else ""


def main() -> None:
    """Write a parquet file for each language."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("older", type=Path, help="folder of unpacked source packages of the older release")
    parser.add_argument("newer", type=Path, help="the same of the newer release")
    parser.add_argument("languages", nargs="+", help="languages, as gettext names them: ro, pt_BR, …")
    parser.add_argument("-o", "--output", type=Path, default=Path("po"), help="folder to write (default: po)")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for language in args.languages:
        rows = joined(messages(args.older, language), messages(args.newer, language))
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), buffer)
        files.write(args.output / f"{language}.parquet", buffer.getvalue().to_pybytes())
        print(f"{language}: {len(rows):,} pairs, {sum(row['fuzzy'] for row in rows):,} fuzzy")
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["package", "older", "newer"])
    for package in sorted(path.name for path in args.older.iterdir() if path.is_dir()):
        writer.writerow([package, version(args.older / package), version(args.newer / package)])
    files.write(args.output / "packages.csv", text.getvalue())


if __name__ == "__main__":
    main()
