"""Simulated fleets that live on a device, for experiments at the paper's scale."""

from sfsl_research.resident.clients import ResidentClients
from sfsl_research.resident.engine import Arm, Figures, ResidentEngine
from sfsl_research.resident.model import ResidentModel

__all__ = ["Arm", "Figures", "ResidentClients", "ResidentEngine", "ResidentModel"]
