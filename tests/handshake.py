"""A TLS handshake without a socket."""

import ssl
from pathlib import Path


def shake_hands(tls: Path, host: str, name: str = "server", trusted: Path | None = None) -> None:
    """A TLS handshake in memory, with the strictest checks there are."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    client.load_verify_locations(trusted or tls / "authority.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(tls / f"{name}.pem", tls / f"{name}.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
