"""Encoders, heads and the momentum twin."""

from gcalign.lab.models.encoders import Factory, NGrams, encoder, outside
from gcalign.lab.models.heads import Twin, momentum_at, predictor, projector

__all__ = ["Factory", "NGrams", "Twin", "encoder", "momentum_at", "outside", "predictor", "projector"]
