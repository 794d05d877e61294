"""What the fuzzers found, each by itself."""

import msgspec
import pytest

from cohort import Cohort, Stepper
from sfsl.errors import InvalidMessage


def test_a_signature_that_nobody_asked_for_does_not_end_the_round() -> None:
    """One signed request outside active mode made the server look for everyone's, and fail."""
    stepper = Stepper(Cohort(4)).until("union")
    request = stepper.clients["c0"].handle_union(stepper.outbound["c0"])
    with pytest.raises(InvalidMessage, match="outside active mode"):
        stepper.server.receive("c0", msgspec.structs.replace(request, signature=bytes(64)))
    stepper.server.receive("c0", request)
    del stepper.outbound["c0"]
    for name, message in stepper.outbound.items():
        stepper.server.receive(name, stepper.clients[name].handle_union(message))
    assert set(stepper.server.close_phase()) == set(stepper.clients)
