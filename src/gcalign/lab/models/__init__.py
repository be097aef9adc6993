"""Encoders, heads and the momentum twin."""

from gcalign.lab.models.encoders import encoder
from gcalign.lab.models.heads import predictor, projector
from gcalign.lab.models.twin import Twin, momentum_at

__all__ = ["Twin", "encoder", "momentum_at", "predictor", "projector"]
