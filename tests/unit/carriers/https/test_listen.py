"""Where a server says that it can be reached."""

from pathlib import Path

import pytest

from sfsl.carriers.https.listen import Listen, url


@pytest.mark.parametrize(
    ("host", "secured", "told"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8443"),
        ("example.org", True, "https://example.org:8443"),
        ("::1", True, "https://[::1]:8443"),
    ],
)
def test_an_address_as_clients_write_it(host: str, secured: bool, told: str) -> None:
    pair = {"certificate": Path("a.pem"), "key": Path("a.key")} if secured else {}
    assert url(Listen(host=host, port=0, **pair), 8443) == told
