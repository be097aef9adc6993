"""Output that does not fail a finished job: terminals that know ASCII alone, readers that are gone, narrow tables."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from gcalign.lab.words import printable

if TYPE_CHECKING:  # imported when a table is shown: help does not wait for it
    from rich.console import Console, RenderableType
    from rich.table import Table

Item = TypeVar("Item")


class Steady:
    """A stream that goes nowhere once its reader is gone: `gcalign train … | head -1` trains to the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._give_up()
            if self._stream is sys.__stdout__ and not isinstance(error, BrokenPipeError):
                raise ValueError(
                    f"standard output cannot be written ({error.strerror}); send it elsewhere, and use the same "
                    "command again"
                ) from error

    def _give_up(self) -> None:
        # as the documentation of Python's signals advises: what is left in the buffer must go somewhere at exit
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def steady() -> Iterator[None]:
    """Within, printing never fails for want of a reader or of a character, and a warning is a line."""
    before = sys.stdout, sys.stderr
    opened: list[TextIO] = []

    def made(stream: TextIO | None) -> Any:
        if stream is None:  # closed before the command started
            opened.append(open(os.devnull, "w"))  # noqa: SIM115  # closed below
            return opened[-1]
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        return Steady(stream)

    sys.stdout, sys.stderr = map(made, before)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
        for stream in opened:
            stream.close()


def _warned(message: Warning | str, *where: Any, **more: Any) -> None:
    print(f"gcalign: warning: {printable(message)}", file=sys.stderr)


class Progress:
    """One bar for each loop that is running, on standard error; silent where that is no terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        hidden = not shown or not sys.stderr.isatty()
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def over(self, items: Sequence[Item], describe: Callable[[Item], str]) -> Iterator[Item]:
        """The items one by one, each under its description."""
        task = self._bars.add_task("", total=len(items))
        try:
            for item in items:
                self._bars.update(task, description=describe(item))
                yield item
                self._bars.advance(task)
        finally:
            self._bars.remove_task(task)


def console(width: int) -> Console:
    """For standard output; where that is no terminal and COLUMNS is not set, of this width."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() or _columns_set() else width)


def _columns_set() -> bool:
    return os.environ.get("COLUMNS", "").isdigit()


def fitting(table: Table, console: Console) -> RenderableType:
    """The table; where the terminal or COLUMNS is too narrow, its rows one below the other, `heading: value`."""
    from rich.console import Group
    from rich.measure import Measurement
    from rich.text import Text

    wide = Measurement.get(console, console.options.update(max_width=10_000), table).minimum
    if wide <= console.width or not (console.is_terminal or _columns_set()):
        return table
    lines = [Text.assemble((str(table.title), "bold"))] if table.title else []
    cells = [list(column.cells) for column in table.columns]
    for row in zip(*cells, strict=True):
        lines.append(Text("─" * min(20, console.width), style="dim"))
        for column, cell in zip(table.columns, row, strict=True):
            text = cell if isinstance(cell, Text) else Text(str(cell))
            if text.plain:
                lines.append(Text.assemble((f"{column.header}: " if str(column.header) else "", "bold"), text))
    return Group(*lines)
