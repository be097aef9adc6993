"""The data sets known by name: where they live, what their columns are called, their classes and statistics."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gcalign.errors import did_you_mean
from gcalign.lab.words import path_of

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
# the classes of ImageNet-100, from `imagenet100.txt` of Tian, Krishnan and Isola, "Contrastive Multiview Coding"
# (https://github.com/HobbitLong/CMC); in its order, which is the label order of `clane9/imagenet-100` on the hub too
WNIDS = tuple(
    """
    n02869837 n01749939 n02488291 n02107142 n13037406 n02091831 n04517823 n04589890 n03062245 n01773797
    n01735189 n07831146 n07753275 n03085013 n04485082 n02105505 n01983481 n02788148 n03530642 n04435653
    n02086910 n02859443 n13040303 n03594734 n02085620 n02099849 n01558993 n04493381 n02109047 n04111531
    n02877765 n04429376 n02009229 n01978455 n02106550 n01820546 n01692333 n07714571 n02974003 n02114855
    n03785016 n03764736 n03775546 n02087046 n07836838 n04099969 n04592741 n03891251 n02701002 n03379051
    n02259212 n07715103 n03947888 n04026417 n02326432 n03637318 n01980166 n02113799 n02086240 n03903868
    n02483362 n04127249 n02089973 n03017168 n02093428 n02804414 n02396427 n04418357 n02172182 n01729322
    n02113978 n03787032 n02089867 n02119022 n03777754 n04238763 n02231487 n03032252 n02138441 n02104029
    n03837869 n03494278 n04136333 n03794056 n03492542 n02018207 n04067472 n03930630 n03584829 n02123045
    n04229816 n02100583 n03642806 n04336792 n03259280 n02116738 n02108089 n03424325 n01855672 n02090622
    """.split()  # noqa: SIM905 - as the file has them: no quotes
)
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, in [0, 1]
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR: Normalisation = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
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
class DataSet:
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
    normalisation: Normalisation | None = None  # None: measured
    splits: tuple[str, ...] = ("train", "test")
    share: float | None = None  # held out for testing where the data set comes undivided; None: it never does


def local(root: str | Path | None) -> Path | None:
    """Where local data sets are: `root`, else the folder that GCALIGN_DATA names.

    A relative root that is not here may be in that folder.
    """
    folder = path_of(os.environ["GCALIGN_DATA"]) if os.environ.get("GCALIGN_DATA") else None
    if root is None:
        return folder
    place = path_of(root)
    return folder / place if folder and not place.exists() and (folder / place).exists() else place


def table_in(root: str | Path | None, name: str) -> Path | None:
    """A file in the folder of local data sets; None where it is not."""
    folder = local(root)
    return folder / name if folder is not None and (folder / name).is_file() else None


def places(data_set: DataSet, root: Path | None, *others: str) -> list[Path]:
    """Folders that may hold a data set: by its name, the root itself, or within either as a clone of the hub has it."""
    if root is None:
        return []
    tops = [root / name for name in (data_set.name, *others)] + [root]
    inside = ("", "data", *([data_set.config] if data_set.config else []))
    return [top / name for top in tops for name in inside if (top / name).is_dir()]


_KNOWN = (
    DataSet(
        "cifar10", "uoft-cs/cifar10", "plain_text", image="img", label="label", size=32, classes=CIFAR10,
        normalisation=CIFAR,
    ),
    DataSet(
        "cifar100", "uoft-cs/cifar100", "cifar100", image="img", label="fine_label", size=32, classes=CIFAR100,
        normalisation=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
    DataSet(
        "svhn", "ufldl-stanford/svhn", "cropped_digits", image="image", label="label", size=32,
        classes=tuple("0123456789"), normalisation=((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        splits=("train", "test", "extra"),
    ),
    DataSet(
        "imagenet100", "clane9/imagenet-100", image="image", label="label", size=224, classes=WNIDS,
        normalisation=IMAGENET,
    ),
    DataSet(
        "pacs", "flwrlabs/pacs", image="image", label="label", domain="domain",
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        domain_names=("photo", "art_painting", "cartoon", "sketch"),
        normalisation=IMAGENET,  # PACS has none of its own; the field normalises it as ImageNet
        splits=("train", "test", "all"), share=0.3,
    ),
    # CIFAR-10's normalisation: a corruption shifts the data, not what a model makes of it
    DataSet(
        "cifar10c", image="image", label="label", size=32, classes=CIFAR10, normalisation=CIFAR, splits=("test",)
    ),
    DataSet(
        "fashion-mnist", "zalando-datasets/fashion_mnist", "fashion_mnist", image="image", label="label", size=28,
        classes=FASHION, normalisation=((0.2860, 0.2860, 0.2860), (0.3530, 0.3530, 0.3530)),
    ),
    DataSet("folder", splits=OWN, share=0.3),
    DataSet("parquet", splits=OWN, share=0.3),
)  # fmt: skip
DATA_SETS = {data_set.name: data_set for data_set in _KNOWN}
OF_USERS = ("folder", "parquet", "pairs")  # which data these are, their root says; the others are known by name


def names() -> tuple[str, ...]:
    """The data sets that `load` knows by name."""
    return tuple(DATA_SETS)


def find(name: str) -> DataSet:
    """The data set of this name; with a slash, a repository on the hub."""
    if name in DATA_SETS:
        return DATA_SETS[name]
    if name.count("/") == 1 and all(name.split("/")):
        return DataSet(name, hub=name, splits=OWN, share=0.3)
    near = did_you_mean(name, DATA_SETS)
    raise ValueError(f"data={name!r} is unknown; {near}; or owner/name of a data set on the Hugging Face hub")
