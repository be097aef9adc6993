"""A claim: where it stands, what it says, and the function that judges it by result files."""

from __future__ import annotations

from dataclasses import dataclass

from gcalign.lab.experiments.judges import Judge, NotMeasured, Results, Verdict


@dataclass(frozen=True)
class Claim:
    section: str  # a family: tests of one section are corrected together
    label: str
    where: str  # in the paper, or in our plan
    says: str
    paper_value: str
    judge: Judge
    exploratory: bool = False  # how it is judged, or measured, was decided with results in view

    def verdict(self, results: Results) -> Verdict:
        try:
            return self.judge(results)
        except NotMeasured as missing:
            command, *so_far = missing.args
            return Verdict("not measured", " ".join([f"`{command}`", *(f"({how})" for how in so_far)]))
