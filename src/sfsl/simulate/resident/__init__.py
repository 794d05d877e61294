"""Simulated fleets that live on a device, for experiments at the paper's scale."""

from sfsl.simulate.resident.clients import ResidentClients
from sfsl.simulate.resident.engine import Arm, Figures, ResidentEngine
from sfsl.simulate.resident.model import ResidentModel

__all__ = ["Arm", "Figures", "ResidentClients", "ResidentEngine", "ResidentModel"]
