"""The conversation with a server: TLS, signed requests, long polls, tries again (network.md 1, 2, 4, 5)."""

import http.client
import json
import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from second_client.hot import HotRound, Limits
from second_client.hot import Train as HotTrain
from second_client.log import Log
from second_client.privacy import RandomizedResponse
from second_client.rounds import Model, Round, Train
from second_client.secagg import Policy, Session, sign
from second_client.wire import Refused, decode, digest, encode, require

FRAME_LIMIT = 1 << 26
JSON_LIMIT = 1 << 16


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        require(type(found) is dict, "not a JSON object")
        return found


class RoundOver(Exception):
    """410: how the ticket ended (5.5)."""

    def __init__(self, outcome: str, number: int) -> None:
        super().__init__(f"round {number}: {outcome}")
        self.outcome, self.number = outcome, number


def client_id(public: bytes) -> str:
    return digest("client id", public)[:16].hex()


def signed_headers(
    identity: Ed25519PrivateKey,
    deployment: bytes,
    host: str,
    method: str,
    target: str,
    body: bytes,
    time_ms: int,
    nonce: bytes,
) -> dict[str, str]:
    """The headers of one request (2.1, 2.2)."""
    line = (host.encode(), method.encode(), target.encode())
    parts = (*line, sha256(body).digest(), time_ms.to_bytes(8, "big"), nonce)
    return {
        "Sfsl-Client": client_id(identity.public_key().public_bytes_raw()),
        "Sfsl-Host": host,
        "Sfsl-Time": str(time_ms),
        "Sfsl-Nonce": nonce.hex(),
        "Sfsl-Signature": sign(identity, "http request", deployment, *parts).hex(),
    }


class SecondClient:
    """``seed`` is the identity's; ``known`` (active mode) the public keys of all, by id, or ``log`` what
    proves them; ``deployment`` the one that was met before, which a client that ends keeps (1.1)."""

    def __init__(
        self,
        url: str,
        authority: str,
        seed: bytes,
        *,
        policy: Policy | None = None,
        known: Mapping[str, bytes] | None = None,
        response: RandomizedResponse | None = None,
        deployment: bytes | None = None,
        log: Log | None = None,
    ) -> None:
        place = urlsplit(url)
        require(place.scheme == "https" and place.hostname is not None, "not https")
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._host = place.hostname or ""
        self._http = http.client.HTTPSConnection(
            place.hostname or "", place.port, context=context, timeout=60
        )
        self._identity = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._identity.public_key().public_bytes_raw()
        self.id = client_id(self.public)
        self._policy, self._known, self._log = policy or Policy(), known, log
        if log is not None:
            self._known = {}
        self._response = response or RandomizedResponse(os.urandom(32))
        self._deployment = deployment
        self._ahead_ms = 0
        self._fetched: dict[bytes, bytes] = {}

    def close(self) -> None:
        self._http.close()

    # -- requests (2, 5.6) -----------------------------------------------------------------------------

    def _request(
        self, method: str, target: str, body: bytes = b"", *, signed: bool = True, limit: int = FRAME_LIMIT
    ) -> Answer:
        """One answer that means something: what asks for patience or for another signature is tried again."""
        pause, attempts = 1.0, 0
        while True:
            headers = {"Accept-Encoding": "identity"}
            if signed:
                assert self._deployment is not None
                moment, nonce = int(time.time() * 1000) + self._ahead_ms, os.urandom(16)
                headers |= signed_headers(
                    self._identity, self._deployment, self._host, method, target, body, moment, nonce
                )
            try:
                answer = self._once(method, target, body, headers, limit)
            except ssl.SSLCertVerificationError:
                raise
            except (OSError, http.client.HTTPException):
                self._http.close()
                answer = Answer(500, {}, b"")
            if answer.status == 401 and attempts < 3:
                attempts += 1
                self.about()
                continue
            if answer.status not in (429, 500, 503):
                return answer
            wait = float(answer.headers.get("Retry-After", 0)) or pause
            time.sleep(wait * random.uniform(1.0, 1.5) if wait != pause else pause * random.uniform(0.5, 1.0))
            pause = min(60.0, 2 * pause)

    def _once(self, method: str, target: str, body: bytes, headers: dict[str, str], limit: int) -> Answer:
        self._http.request(method, target, body=body or None, headers=headers)
        response = self._http.getresponse()
        if response.status >= 400:
            limit = JSON_LIMIT
        data = response.read(limit + 1)
        require(len(data) <= limit, "an answer that is too large")
        return Answer(response.status, response.headers, data)

    def _expect(self, answer: Answer, *statuses: int) -> Answer:
        if answer.status == 410:
            found = answer.json()
            raise RoundOver(str(found["outcome"]), int(found["round"]))
        if answer.status not in statuses:
            raise Refused(f"{answer.status} {answer.body[:200].decode(errors='replace')}")
        return answer

    # -- before a round (5.2, 1 to 3) ------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        answer = self._request("GET", "/v1/about", signed=False, limit=JSON_LIMIT)
        found = self._expect(answer, 200).json()
        require(found["protocol"] == 1, "another protocol")
        deployment = bytes.fromhex(found["deployment"])
        require(self._deployment in (None, deployment), "another deployment than before")
        self._deployment = deployment
        self._ahead_ms = int(found["time"]) - int(time.time() * 1000)
        return found

    def join(self) -> None:
        """Who the server is, what is trained, and enrolment."""
        about = self.about()
        package = self._expect(self._request("GET", "/v1/model", signed=False), 200).body
        self.model = Model.read(package)
        require(self.model.digest.hex() == about["model"], "another model than announced")
        # In active mode everybody has to have been told of the same model (round.md 3).
        bound = about.get("binds_model", False) and self._known is not None
        self._told = [digest("model told", self.model.digest, b"")] if bound else []
        body = encode("enrol", public_key=self.public)
        enrolled = self._expect(self._request("POST", "/v1/enrol", body, limit=JSON_LIMIT), 200).json()
        require(enrolled["client"] == self.id, "enrolled as somebody else")

    # -- a round (5.2, 3 to 5) -------------------------------------------------------------------------

    def check_in(
        self, real: Mapping[str, Sequence[int]], train: Train | HotTrain, hot: Limits | None = None
    ) -> None:
        """With new keys. A round that was under way goes on without us (5.3). With ``hot`` it is for rounds
        over hot rows, within these limits."""
        sums = 2 if hot is None else 1
        session = Session(self.id, self._policy, sums=sums, identity=self._identity, known=self._known)
        self._round: Round | HotRound
        if hot is None:
            self._round = Round(session, self.model, real, self._response, train, told=self._told)  # type: ignore[arg-type]
        else:
            self._round = HotRound(session, self.model, real, train, self._published, hot, self._told)  # type: ignore[arg-type]
        body = encode("check-in", model=self.model.digest, keys=session.keys)
        checked = decode(self._expect(self._request("POST", "/v1/check-in", body), 200).body, "checked-in")
        self._ticket, self.received = checked["ticket"].hex(), 0
        self.acknowledged = checked["acknowledged"]

    def _published(self, digest: bytes) -> bytes:
        """What everybody downloads, of which this client keeps a copy by its digest (hot.md 5)."""
        if digest not in self._fetched:
            self._fetched[digest] = self._expect(
                self._request("GET", f"/v1/published/{digest.hex()}"), 200
            ).body
        return self._fetched[digest]

    @property
    def spent(self) -> float:
        """What the round at hand has cost (rho); a ledger would keep it."""
        return self._round.spent if isinstance(self._round, HotRound) else 0.0

    def step(self) -> None:
        """Wait for the next message and answer it."""
        target = f"/v1/next/{self._ticket}?after={self.received}"
        while (answer := self._expect(self._request("GET", target), 200, 204)).status == 204:
            pass
        number = self.received + 1
        require(answer.headers["Sfsl-Sequence"] == str(number), "another message than the next")
        if self._log is not None and number == 1:
            self._prove(decode(answer.body, "invitation", "hot-invitation"))
        ours = self._round.answer(answer.body)
        self.received = number
        # 409: we were too late, and the next question will be told so.
        self._expect(self._request("POST", f"/v1/answer/{self._ticket}/{number}", ours), 204, 409)

    def _prove(self, invitation: Mapping[str, Any]) -> None:
        """Everyone in the cohort is in the log, or we say nothing (log.md 4.3)."""
        assert self._log is not None
        names = sorted(member["keys"]["client"] for member in invitation["roster"]["members"])
        body = encode("log-query", since=self._log.since, clients=names)
        proof = decode(self._expect(self._request("POST", "/v1/log/prove", body), 200).body, "log-proof")
        self._known.clear()  # type: ignore[union-attr]
        self._known.update(self._log.take(proof, names))  # type: ignore[union-attr]

    def take_part(
        self, real: Mapping[str, Sequence[int]], train: Train | HotTrain, hot: Limits | None = None
    ) -> RoundOver:
        """One check-in to its end."""
        self.check_in(real, train, hot)
        while True:
            try:
                self.step()
            except RoundOver as over:
                return over
