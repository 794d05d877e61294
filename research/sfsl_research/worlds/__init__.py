"""Worlds to try a default on: generated ones whose signal is known, and real ones from a folder."""

from sfsl_research.worlds.generated import WORLDS, WorldSettings, generate
from sfsl_research.worlds.real import REAL, load_real
from sfsl_research.worlds.world import Facts, World, facts_of

__all__ = ["REAL", "WORLDS", "Facts", "World", "WorldSettings", "facts_of", "generate", "load_real"]
