"""What the trace counts, on calls whose number is known; and one round of the local carrier."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

pytest.importorskip("torch")

import sfsl_research
from sfsl_research.trace.calls import PACKAGE, Calls, Recorder, hooked
from sfsl_research.trace.carriers import trace
from sfsl_research.trace.report import floors, room_of, summary


def function(path: str, source: str, **known: Any) -> Callable[..., Any]:
    """A function ``f`` whose code claims to lie in ``path``."""
    code: CodeType = compile(source, path, "exec")
    exec(code, known)  # noqa: S102
    found: Callable[..., Any] = known["f"]
    return found


def recorded(act: Callable[[], Any]) -> Calls:
    recorder = Recorder()
    recorder.counting = True
    with hooked(recorder):
        act()
    assert sys.getprofile() is None
    return recorder.calls


def test_an_edge_is_a_call_from_file_to_file_through_the_code_of_others() -> None:
    low = function(PACKAGE + "crypto/low.py", "def g(): pass\ndef f():\n    g(); g()")
    foreign = function("/elsewhere/library.py", "def f(): return low()", low=low)
    top = function(PACKAGE + "rounds/top.py", "def f():\n    foreign(); low()", foreign=foreign, low=low)
    calls = recorded(top)
    assert dict(calls.edges) == {("rounds/top.py", "crypto/low.py"): 2}
    assert dict(calls.files) == {"rounds/top.py": 1, "crypto/low.py": 6}


def test_of_research_only_the_carrier_of_ray_counts() -> None:
    research = Path(sfsl_research.__file__).parent
    low = function(PACKAGE + "crypto/low.py", "def f(): pass")
    swarm = function(str(research / "swarm/members.py"), "def f(): low()", low=low)
    carrier = function(str(research / "ray/engine.py"), "def f():\n    swarm(); low()", low=low, swarm=swarm)
    calls = recorded(carrier)
    assert dict(calls.edges) == {("ray/engine.py", "crypto/low.py"): 2}
    assert set(calls.files) == {"ray/engine.py", "crypto/low.py"}


def test_what_a_loop_resumes_was_not_called_by_who_started_it() -> None:
    low = function(PACKAGE + "crypto/low.py", "def f(): pass")
    loop = function("/usr/lib/python3/asyncio/events.py", "def f(): low()", low=low)
    top = function(PACKAGE + "rounds/top.py", "def f(): loop()", loop=loop)
    calls = recorded(top)
    assert not calls.edges
    assert set(calls.files) == {"rounds/top.py", "crypto/low.py"}


def test_nothing_is_counted_before_the_first_commit() -> None:
    recorder = Recorder()
    with hooked(recorder):
        function(PACKAGE + "crypto/low.py", "def f(): pass")()
    assert recorder.calls == Calls()


def test_rooms_and_what_goes_back_and_forth() -> None:
    calls = Calls()
    for pair in (("run/a.py", "rounds/b.py"), ("rounds/b.py", "run/a.py"), ("rounds/b.py", "rounds/c.py")):
        calls.edges[pair] = 1
    found = summary(calls)
    assert (found["edges"], found["edges_within_rooms"]) == (3, 1)
    assert found["both_ways"] == ["rounds <-> run"]
    assert found["upwards"] == ["rounds/b.py -> run/a.py"]
    assert room_of("carriers/https/app.py") == "carriers/https"
    assert room_of("codec.py") == "codec"


def test_floors_are_those_of_the_import_contract() -> None:
    floor = floors()
    assert floor["cli"] < floor["carriers"] < floor["service"] < floor["rounds"] < floor["errors"]
    assert floor["run"] == floor["report"]
    assert floor["ray"] == floor["carriers"]


def test_a_round_of_the_local_carrier(tmp_path: Path) -> None:
    calls = trace("local", tmp_path)
    assert {"rounds/client.py", "rounds/server.py", "secagg/client.py", "submodel/store.py"} <= {*calls.files}
    assert any(one.startswith("carriers/local") for one, _ in calls.edges)
    # What happens before the first round and after the last is not in it.
    assert not any(name.startswith(("settings/toml", "data/synthetic", "run/setup")) for name in calls.files)
