"""The data sets known by name: where they live, what their columns are called, their classes and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gcalign.errors import did_you_mean
from gcalign.lab.data.encoded import Records
from gcalign.lab.data.imagenet100 import WNIDS

CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())  # noqa: SIM905 - a list, but readable
CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 - a list, but readable
)
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
WORDS = {  # what a split may be called where it is stored, best first
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val"),
    "test": ("test", "testing", "validation", "valid", "val"),
    "extra": ("extra",),
    "all": ("all",),  # undivided
}
STORED = tuple(dict.fromkeys(word for words in WORDS.values() for word in words if word != "all"))
OWN = ("train", "validation", "test", "all")  # splits of a user's own data


@dataclass(frozen=True)
class Source:
    """What a named data set is."""

    name: str
    hub: str | None = None  # repository on the Hugging Face hub
    config: str | None = None  # of that repository
    image: str | None = None  # column names; None: to be found
    label: str | None = None
    domain: str | None = None
    size: int | None = None  # of the square images; None: the stored size, at most 224
    classes: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None  # None: measured
    std: tuple[float, ...] | None = None
    splits: tuple[str, ...] = ("train", "test")
    share: float | None = None  # held out for testing where the data set comes undivided; None: it never does


@dataclass(frozen=True)
class Request:
    """What is asked of a data set, beyond its name."""

    root: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    corruption: str = ""
    severity: int = 0
    seed: int = 0


Found = Mapping[str, Callable[[], Records]]  # by the word a split is stored under, how to read it


def places(source: Source, request: Request, *others: str) -> list[Path]:
    """Folders that may hold a data set: by its name, the root itself, or within either as a clone of the hub has it."""
    if request.root is None:
        return []
    tops = [request.root / name for name in (source.name, *others)] + [request.root]
    inside = ("", "data", *([source.config] if source.config else []))
    return [top / name for top in tops for name in inside if (top / name).is_dir()]


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="cifar10",
            hub="uoft-cs/cifar10",
            config="plain_text",
            image="img",
            label="label",
            size=32,
            classes=CIFAR10,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
        ),
        Source(
            name="cifar100",
            hub="uoft-cs/cifar100",
            config="cifar100",
            image="img",
            label="fine_label",
            size=32,
            classes=CIFAR100,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
        ),
        Source(
            name="svhn",
            hub="ufldl-stanford/svhn",
            config="cropped_digits",
            image="image",
            label="label",
            size=32,
            classes=tuple("0123456789"),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            splits=("train", "test", "extra"),
        ),
        Source(
            name="imagenet100",
            hub="clane9/imagenet-100",
            image="image",
            label="label",
            size=224,
            classes=WNIDS,
            mean=IMAGENET[0],
            std=IMAGENET[1],
        ),
        Source(
            name="pacs",
            hub="flwrlabs/pacs",
            image="image",
            label="label",
            domain="domain",
            classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
            domain_names=("photo", "art_painting", "cartoon", "sketch"),
            mean=IMAGENET[0],  # PACS has none of its own; the field normalises it as ImageNet
            std=IMAGENET[1],
            splits=("train", "test", "all"),
            share=0.3,
        ),
        Source(
            name="cifar10c",
            size=32,
            classes=CIFAR10,
            mean=(0.4914, 0.4822, 0.4465),  # CIFAR-10's: a corruption shifts the data, not the model's normalisation
            std=(0.2470, 0.2435, 0.2616),
            splits=("test",),
        ),
        Source(
            name="fashion-mnist",
            hub="zalando-datasets/fashion_mnist",
            config="fashion_mnist",
            image="image",
            label="label",
            size=28,
            classes=FASHION,
            mean=(0.2860, 0.2860, 0.2860),
            std=(0.3530, 0.3530, 0.3530),
        ),
        Source(name="folder", splits=OWN, share=0.3),
        Source(name="parquet", splits=OWN, share=0.3),
    )
}


def names() -> tuple[str, ...]:
    """The data sets that `load` knows by name."""
    return tuple(SOURCES)


def find(name: str) -> Source:
    """The data set of this name; with a slash, a repository on the hub."""
    if name in SOURCES:
        return SOURCES[name]
    if name.count("/") == 1 and all(name.split("/")):
        return Source(name=name, hub=name, splits=OWN, share=0.3)
    raise ValueError(
        f"data={name!r} is unknown; {did_you_mean(name, SOURCES)}; or owner/name of a data set on the Hugging Face hub"
    )
