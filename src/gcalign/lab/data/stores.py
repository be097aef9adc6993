"""Images in tables on disk or on the hub."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gcalign.lab import files
from gcalign.lab.data.catalogue import STORED, DataSet, places
from gcalign.lab.data.columns import records
from gcalign.lab.data.encoded import Records
from gcalign.lab.data.tables import ArrowTable, Mapped, Parquet
from gcalign.lab.words import explained

PATIENCE = 5.0  # seconds for the hub to answer at all
Found = Mapping[str, Callable[[], Records]]  # by the word a split is stored under, how to read it


def parquet(data_set: DataSet, root: Path | None) -> Found:
    """`<split>.parquet`, `<split>-*.parquet` or `<split>/*.parquet`; or, where a split can be made, any such file."""
    if root is not None and root.is_file():
        return _tables({"all": Parquet([root])}, data_set)
    for place in places(data_set, root):
        layouts = ("{}.parquet", "{}-*.parquet", "{}/*.parquet")
        found = {w: sorted({p for layout in layouts for p in place.glob(layout.format(w))}) for w in STORED}
        if data_set.share is not None and not any(found.values()):
            found = {"all": sorted(place.glob("*.parquet"))}
        if any(found.values()):
            return _tables({word: Parquet(paths) for word, paths in found.items() if paths}, data_set)
    return {}


def saved(data_set: DataSet, root: Path | None) -> Found:
    """A folder that `save_to_disk` of Hugging Face's `datasets` wrote."""
    for place in places(data_set, root):
        if (place / "dataset_dict.json").is_file() or (place / "state.json").is_file():
            import datasets

            for state in (*place.glob("state.json"), *place.glob("*/state.json")):
                _check_inside(state)
            return _mapped(datasets.load_from_disk(str(place)), str(place), data_set)
    return {}


def hub(data_set: DataSet, root: Path | None) -> Found:
    """The data set on the Hugging Face hub, or what an earlier download left in its cache."""
    assert data_set.hub is not None
    import datasets

    answers = reachable()
    try:
        with _offline(not answers):
            loaded = datasets.load_dataset(data_set.hub, data_set.config)
    except Exception as error:  # a dozen kinds, from connection refused to no such repository
        if answers:
            raise ValueError(f"{data_set.hub} could not be loaded from the hub: {error}") from error
        return {}
    return _mapped(loaded, data_set.hub, data_set)


def _tables(tables: Mapping[str, ArrowTable], data_set: DataSet) -> Found:
    return {word: partial(records, tables, word, data_set) for word in tables}


def _mapped(loaded: Any, origin: str, data_set: DataSet) -> Found:
    splits = loaded if isinstance(loaded, dict) else {"all": loaded}
    tables = {str(w): Mapped(rows.data, rows.features.arrow_schema, f"{origin} {w}") for w, rows in splits.items()}
    return _tables(tables, data_set)


def _check_inside(state: Path) -> None:
    """That the files which a saved data set names are its own."""
    odd = f"{state} is not what `save_to_disk` writes"
    with explained(odd, "save the data set again", ValueError, KeyError, TypeError):
        content = files.from_json(files.read(state))
        named = [str(part["filename"]) for part in content["_data_files"]]
    for name in named:
        if Path(name).name != name:
            raise ValueError(f"{state} names {name!r}; files of a data set must be within its folder: save it again")


def reachable() -> bool:
    """Whether the hub answers within `PATIENCE`; `datasets` alone retries for half a minute before it gives up."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    answered = threading.Event()

    def ask() -> None:
        url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            pass  # an answer, if not a welcome
        except (OSError, ValueError):
            return
        answered.set()

    # a thread of its own, as looking up a name can outlast any timeout
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return answered.is_set()


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Hugging Face's libraries read `HF_HUB_OFFLINE` when imported, which is too late to set it."""
    import datasets.config
    import huggingface_hub.constants

    modules: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [(module, module.HF_HUB_OFFLINE) for module in modules]
    try:
        for module, offline in before:
            module.HF_HUB_OFFLINE = wanted or offline
        yield
    finally:
        for module, offline in before:
            module.HF_HUB_OFFLINE = offline
