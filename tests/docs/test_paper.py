"""docs/paper.md knows every statement of the paper, and every command on it exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gcalign.lab import verify
from gcalign.lab.experiments.engine import experiment

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]  # number, label, …, verdict
# every \\label of the paper's text that is no section: the text itself is not part of this repository
LABELS = re.findall(
    r"\S+",
    """
    eq:INCE eq:RINCE def:prox eq:prox eq:eot eq:Birkhoff eq:sinkp eq:uvupdates def:wdm def:gibbs eq:mainobj
    alg:gca eq:uot tab:diff eq:kleqince thm:cl_eq_ot thm:rince eq:hsrince co:rince eq:w1eqrince eq:gcarince
    eq:byol thm:byol eq:eqbyol thm:lowest thm:gcarince thm:uniformity asm:express_encoder
    asm:small_intra_variance cl:ce_eq_uniform tab:new_combine fig:Ptgt ot lm:unique fig:proximal eq:birkhoffapp
    eq:indf eq:breg1 eq:oriprob eq:scaleapp eq:Bregmaniterations eq:uvupdatesapp eq:dot eq:eotapp eq:gibbs Pt
    eq:dual lm:eoteqbreg eq:eoteqbreg eq:wdist eq:continousotdual eq:legendre def:phidivergence eq:dualphiot
    eq:eotdual eq:wdual alg:example Convergence prop:pi eq:qual eq:pi eq:funtional lm:monotonicity lm:compact
    pp1 eq:ueot lm:uotdual eq:LpC prop:pij eq:rincedm eq:rinceapp eq:w1 eq:emp_risk lm:symmetry eq:symmetry
    eq:lip eq:alignment lm:klfg eq:uniformity transform_ce_to_sup lm:ot_sup_loss prop:feat_suppress tab:cifar10
    tab:cifar100 tab:cifar1004c tab:cifar10c tab:cifar10c4c fig:time_comp fig:diagnolline fig:epsilon_study
    fig:sensitivity_study fig:ablation_study
    """,
)
SECTIONS = ("sec:", "subsec:", "app:", "appendix:")


@pytest.mark.parametrize("label", LABELS)
def test_every_statement_of_the_paper_has_a_row_with_a_verdict(label):
    (row,) = [row for row in ROWS if f"`{label}`" in row[1]]
    assert len(row) == 5
    assert row[-1].strip()


def test_every_number_is_there_once():
    """Equations 1 to 104, and what LaTeX counts beside them."""
    numbers: list[int] = []
    for row in ROWS:
        for first, last in re.findall(r"(?:Eq\. |, )(\d+)(?:–(\d+))?(?=[ ,)|])", f"{row[0]}|{row[1]}|"):
            numbers += range(int(first), int(last or first) + 1)
    assert sorted(set(numbers)) == list(range(1, 105))
    counted = {"Thm.": 7, "Lemma": 9, "Prop.": 5, "Cor.": 1, "Asm.": 2, "Claim": 1, "Fig. A": 7, "Table A": 4}
    counted["Alg."] = 1
    for kind, count in counted.items():
        rows = [row for row in ROWS if re.match(rf"{re.escape(kind)} ?\d", row[0])]
        assert len(rows) == count, kind


def test_every_command_of_the_page_names_what_exists():
    for command in re.findall(r"`(gcalign [^`]+)`", PAGE):
        words = shlex.split(command)
        if words[1:] == ["verify", "--only", "LABEL"]:
            continue
        if words[1] == "verify":
            assert all(label in verify.labels() for label in words[3::2]), command
        elif words[1] == "reproduce":
            assert words[2] in experiment.names(), command


def test_every_check_of_a_statement_is_on_the_page():
    for label in verify.labels():
        if not label.startswith("tab:") and label not in ("svhn-backbone", "pacs-classes"):
            assert any(f"`{label}`" in cell for row in ROWS for cell in row[3:]) or f"(`{label}`)" in PAGE, label


def test_the_labels_are_those_of_the_text():
    source = next(Path(__file__).parents[3].glob("shared/paper/*.txt"), None)
    if source is None:
        pytest.skip("the paper's text is not here")
    found = re.findall(r"\\label\{([^}]*)\}", source.read_text())
    assert sorted(x for x in found if not x.startswith(SECTIONS)) == sorted(LABELS)
