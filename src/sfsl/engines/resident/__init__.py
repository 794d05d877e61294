"""Simulated fleets that live on a device, for experiments at the paper's scale."""

from sfsl.engines.resident.clients import ResidentClients
from sfsl.engines.resident.engine import Arm, Figures, ResidentEngine
from sfsl.engines.resident.model import ResidentModel

__all__ = ["Arm", "Figures", "ResidentClients", "ResidentEngine", "ResidentModel"]
