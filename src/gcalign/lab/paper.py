"""The paper's numbers, as they are printed. Light to import."""

from __future__ import annotations

from collections.abc import Mapping

Figures = tuple[float, ...]  # one for each of METHODS
Rows = Mapping[str, tuple[Figures, Figures]]  # name -> means and standard deviations of test accuracy in %

TITLES = ("INCE", "GCA-INCE", "RINCE", "GCA-RINCE", "SimCLR", "BYOL", "IOT", "IOT-uni", "GCA-UOT")
NAMES = {title.lower(): title for title in TITLES}  # gca-ince -> GCA-INCE, in the paper's order
METHODS = tuple(NAMES)
PAIRS = (("gca-ince", "ince"), ("gca-rince", "rince"))  # the rows Δ of tab:new_combine
SEEDS = 5  # of every mean in the tables
MFLOPS = {"ince": 6.31, "gca-ince": 6.65, "gca-uot": 4.54}  # of the section on computational complexity
DOMAIN_ACCURACY = (72.11, 95.16)  # fig:Ptgt, least to most weight on the domain
DELTAS: Mapping[str, Figures] = {  # the rows Δ of tab:new_combine, one for each column
    "gca-ince": (1.01, 0.46, 0.22, 0.03, 0.15, 0.11, 1.11, -0.56),
    "gca-rince": (0.20, 0.32, 0.31, 1.53, 0.16, -0.47, 0.01, 0.05),
}
UNDERLINED = frozenset({"gca-ince", "gca-rince"})  # in every column of tab:new_combine


def _rows(text: str) -> Rows:
    """`name: means | standard deviations`, a row to a line, in the order of METHODS."""
    lines = [line.partition(":") for line in text.strip().splitlines()]
    parts = {name.strip(): numbers.split("|") for name, _, numbers in lines}
    return {name: (_figures(means), _figures(deviations)) for name, (means, deviations) in parts.items()}


def _figures(text: str) -> Figures:
    return tuple(map(float, text.split()))


# the columns of tab:new_combine
NEW_COMBINE = _rows("""
  CIFAR-10:       92.01 93.02 93.27 93.47 92.07 90.56 92.09 91.49 93.50 | 0.40 0.19 0.20 0.30 0.90 0.59 0.22 0.11 0.31
  CIFAR-100:      71.09 71.55 71.63 71.95 70.85 69.75 68.37 68.62 72.16 | 0.31 0.12 0.36 0.48 0.50 0.37 0.42 0.35 0.38
  SVHN:           92.42 92.64 93.26 93.57 92.13 89.50 92.25 92.33 93.82 | 0.24 0.26 0.15 0.26 0.34 0.46 0.19 0.11 0.17
  ImageNet-100:   73.01 73.04 71.91 73.44 72.20 69.75 72.27 72.88 74.09 | 0.61 0.76 0.43 0.55 0.78 0.83 0.53 0.71 0.40
  CIFAR-10 (Ex):  82.03 82.18 82.60 82.76 81.87 81.55 80.59 80.79 83.18 | 0.32 0.69 0.63 0.49 0.53 0.50 0.64 0.24 0.44
  CIFAR-100 (Ex): 62.54 62.65 63.55 63.14 62.94 62.11 62.69 62.56 63.62 | 0.20 0.17 0.14 0.41 0.13 0.25 0.34 0.22 0.27
  CIFAR-10C:      81.52 82.63 82.86 82.87 81.74 82.43 82.01 81.19 82.90 | 1.04 0.28 0.21 0.11 1.54 0.06 0.80 1.12 0.50
  CIFAR-10C (Ex): 83.28 82.72 83.64 83.69 83.25 70.09 81.57 81.82 83.64 | 0.25 0.27 0.26 0.16 0.18 0.34 0.83 0.51 0.19
""")
# tab:cifar10; the standard rows differ here and there from tab:new_combine
CIFAR10 = _rows("""
  Standard:        92.01 93.02 93.27 93.47 92.16 90.56 92.10 91.49 93.50 | 0.40 0.19 0.20 0.32 0.16 0.59 0.22 0.11 0.31
  Erase (C1):      88.40 88.16 88.80 89.21 88.44 88.77 87.02 87.83 89.84 | 0.17 0.89 1.01 0.59 0.24 0.58 0.43 0.30 0.58
  Crop (C2):       72.45 72.79 73.02 73.10 71.84 70.78 70.44 70.78 73.35 | 0.40 0.62 0.39 0.31 1.02 0.62 0.64 0.21 0.41
  Brightness (C3): 85.24 85.60 85.97 85.98 85.32 85.10 84.31 83.77 86.36 | 0.41 0.57 0.50 0.58 0.32 0.29 0.84 0.21 0.34
""")
# tab:cifar100, also labelled tab:cifar1004c
CIFAR100 = _rows("""
  Standard:        71.09 71.55 71.63 71.95 70.85 69.75 68.37 68.62 72.16 | 0.31 0.12 0.36 0.48 0.50 0.37 0.42 0.35 0.38
  Erase (C1):      62.54 62.65 63.55 63.14 62.94 62.70 62.69 62.56 63.62 | 0.20 0.17 0.14 0.41 0.13 0.31 0.34 0.22 0.27
  Crop (C2):       45.67 46.31 46.47 46.50 46.05 43.11 45.36 45.29 46.60 | 0.31 0.22 0.20 0.35 0.34 0.41 0.19 0.12 0.34
  Brightness (C3): 59.87 59.68 60.38 60.56 60.46 55.74 57.52 57.42 61.02 | 0.36 0.33 0.25 0.25 0.19 0.63 0.32 0.18 0.55
""")
# tab:cifar10c
CIFAR10C = _rows("""
  Standard:        81.52 82.63 82.86 82.87 81.74 82.43 82.01 81.18 82.90 | 1.04 0.28 0.21 0.11 1.54 0.06 0.80 1.12 0.49
  Erase (C1):      82.67 82.19 83.11 83.44 82.49 82.53 82.30 82.30 83.09 | 0.31 0.35 0.36 0.55 0.24 0.34 0.69 0.48 0.62
  Crop (C2):       43.55 41.12 42.51 44.96 42.74 43.86 42.36 42.43 45.20 | 0.90 3.28 1.48 1.46 1.27 0.91 0.87 1.03 1.20
  Brightness (C3): 84.00 84.08 84.24 84.54 83.86 83.87 82.33 80.86 84.88 | 0.47 0.26 0.36 0.26 0.46 0.19 0.31 0.72 0.44
""")
