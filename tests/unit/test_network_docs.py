"""The guide and the specification of the network say what the code does."""

import re
import tomllib
from pathlib import Path

import pytest

from sfsl.carriers.https import status
from sfsl.carriers.https.status import Status, Totals
from sfsl.codec import Message
from sfsl.rounds.exchanges import Request
from sfsl.secagg.messages import Keys
from sfsl.service.messages import CODEC, CheckedIn, CheckIn, Decline, Enrol
from sfsl.settings.serve import from_all_sections

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guide/deployment.md").read_text()
SPEC = (DOCS / "spec/network.md").read_text()


def keys(signature: bytes | None = None) -> Keys:
    two = (bytes(32), bytes(32))
    return Keys("a" * 32, channel=bytes(32), masks=two, commitments=two, signature=signature)


def test_the_guide_names_every_metric_and_no_other() -> None:
    shown = Status("", 0, "", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
    names = re.findall(r"# TYPE (\w+) ", status.text(shown, Totals()))
    assert len(names) > 10
    assert set(re.findall(r"\bsfsl_\w+", GUIDE)) == set(names)


def test_the_settings_behind_a_proxy_are_taken() -> None:
    (snippet,) = re.findall(r"```\n(\[serve\]\n.*?)```", GUIDE, re.DOTALL)
    own = from_all_sections({"serve": tomllib.loads(snippet)["serve"] | {"enrolment": "open"}}).serve
    assert own.plain
    assert own.proxied


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (Enrol(bytes(32)), 58),
        (CheckIn(bytes(32), keys()), 322),
        (CheckIn(bytes(32), keys(bytes(64))), 387),
        (CheckedIn(bytes(16), 0), 56 + 1),
        (Decline(bytes(16)), 42),
        (CheckedIn(bytes(16), 2**32), 56 + 9),
        (Request(bytes(16), 200, (bytes(5), bytes(300)), None), 67 + 2 + 1 + 7 + 303 + 1),
        (Request(bytes(16), 1, (), bytes(64)), 67 + 1 + 1 + 66),
    ],
    ids=str,
)
def test_sizes(message: Message, size: int) -> None:
    assert len(CODEC.encode(message)) == size


def test_messages_written_out() -> None:
    section = SPEC.split("Written out, `Enrol`", 1)[1].split("### 4.3", 1)[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    expected = (Enrol(bytes(range(32))), CheckedIn(bytes(range(16)), 3), Decline(bytes(range(16))))
    for block, message in zip(blocks, expected, strict=True):
        digits = "".join(re.split(r"\s{3,}[{\"]", line)[0] for line in block.splitlines())
        start, end = re.sub(r"\s", "", digits).split("…")
        encoded = CODEC.encode(message).hex()
        assert encoded.startswith(start)
        assert encoded.endswith(end)
