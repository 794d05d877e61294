"""Simulated clients of load tests."""

import pytest

from sfsl.errors import StateError

pytest.importorskip("torch")

from sfsl_research.swarm.members import SimulatedMemory


def test_a_swarms_device_holds_the_servers_count_against_its_own() -> None:
    memory = SimulatedMemory(None, "u0", None, 0)  # type: ignore[arg-type]
    memory.prepare(None)
    memory.prepare(0)
    with pytest.raises(StateError, match="counts 1 masked sets, 0"):
        memory.prepare(1)
    with pytest.raises(StateError, match="entered no round"):
        memory.answer(b"", {}, None)  # type: ignore[arg-type]
