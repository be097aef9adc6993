"""Encoders, heads and the momentum twin."""

from gcalign.models.encoders import encoder
from gcalign.models.heads import predictor, projector
from gcalign.models.twin import Twin, momentum_at

__all__ = ["Twin", "encoder", "momentum_at", "predictor", "projector"]
