"""Protocols that turn frozen features into an accuracy."""

from gcalign.lab.evaluation.domains import corruption_probe, domain_probe, leave_one_domain_out
from gcalign.lab.evaluation.features import extract
from gcalign.lab.evaluation.protocols import PROTOCOLS, evaluate, probe
from gcalign.lab.evaluation.results import Result

__all__ = [
    "PROTOCOLS",
    "Result",
    "corruption_probe",
    "domain_probe",
    "evaluate",
    "extract",
    "leave_one_domain_out",
    "probe",
]
