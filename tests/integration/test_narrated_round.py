"""One secure sum, told exchange by exchange. Read this first: it is the usage example."""

import numpy as np

from sfsl.crypto.secret import SystemRandomness
from sfsl.secagg import Client, Layout, Policy, Server, SessionParams, SumParams


def test_three_clients_one_of_which_drops_out() -> None:
    randomness = SystemRandomness()
    vectors = {
        "ada": np.array([1, 2, 3]),
        "bob": np.array([10, 20, 30]),
        "cyd": np.array([2**32 - 1, 0, 5]),
    }

    # Before the round, each client checks in with fresh public keys. The private halves never leave it.
    policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=1000)
    clients = {name: Client(name, policy, randomness) for name in vectors}
    keys = [client.create_keys() for client in clients.values()]

    # The server forms the cohort and says what it is about to sum.
    params = SessionParams(
        round_id=randomness.bytes(16),
        clients=3,
        threshold=2,
        neighbours=None,
        active=False,
        sums=(SumParams(label="sum", ring="z32", min_contributors=1, layout=Layout(dense=3)),),
    )
    server = Server(params, keys)

    # Exchange 1: the roster goes out; each client answers with sealed shares of its secrets.
    for name, roster in server.rosters().items():
        server.receive(name, clients[name].handle_roster(roster))

    # Exchange 2: the boxes are passed on; each client masks its vector. Bob vanishes now.
    for name, inbound in server.close_phase().items():
        if name != "bob":
            start = clients[name].handle_inbound(inbound)
            server.receive(name, clients[name].create_masked(start, vectors[name]))

    # Exchange 3: the survivors open each other's self-masks and what Bob's absence left uncancelled.
    for name, request in server.close_phase().items():
        server.receive(name, clients[name].handle_unmask(request))
    server.close_phase()

    assert server.opened.survivors == ("ada", "cyd")
    assert server.opened.dense.tolist() == [0, 2, 8]  # 1 + (2^32 - 1) wraps around
