"""CPU time of Flower's own SecAgg+ primitives for one client and the server of a secure sum.

The functions timed are those of the installed `flwr` package, called in the order in which its
client mod (`secaggplus_mod`) and its server workflow (`SecAggPlusWorkflow`) call them, on a
complete graph and with the workflow's default modulus. Left out on both sides: the network,
(de)serialisation of the vectors, training and quantisation.

- Client: two key pairs; shares of the private mask seed and of the mask key, encrypted for and
  received from the N-1 others; the private mask and N-1 pairwise masks added to an int32 vector.
- Server: the sum of the survivors' vectors; one combined secret per client (the seed of a
  survivor, the mask key of a dropout); the masks removed. As in the workflow, a secret is combined
  from the shares of all survivors, not of `threshold` of them. The workflow also expands the masks
  between two dropouts, which cancel; they are not counted here.

`*_share_seconds` is making, encrypting, decrypting and combining shares, `*_mask_seconds` is
expanding, adding and reducing masks; the rest of `client_seconds` and `server_seconds` is key
generation, key agreement and the sum of the vectors. Times are `time.process_time`: all threads.

Run it in an environment of its own that holds only `flwr` and its dependencies:

    python3 -m venv flower-env
    flower-env/bin/pip install flwr
    flower-env/bin/python bench/flower_secagg.py --clients 100 --length 143534 --dropout 0.2

It prints one JSON object to stdout, and its progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from numpy.typing import NDArray

DEFAULTS = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
MODULUS = DEFAULTS.modulus_range
INPUT_RANGE = DEFAULTS.quantization_range

Vector = list[NDArray[Any]]  # Flower's form of a vector: a list of arrays
PublicKeys = dict[int, tuple[bytes, bytes]]  # node id -> (mask key, encryption key)


class Clock:
    """CPU seconds, summed by part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = process_time()
        yield
        self.seconds[part] += process_time() - start


@dataclass
class Client:
    """One client: key pair 1 makes the pairwise masks, key pair 2 encrypts the shares."""

    nid: int
    clock: Clock = field(default_factory=Clock)
    sk1: bytes = b""
    sk2: bytes = b""
    seed: bytes = b""
    share_keys: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # of (seed, sk1)

    def setup(self) -> tuple[bytes, bytes]:
        """Stage 0: make both key pairs; return the public keys."""
        with self.clock("key"):
            sk1, pk1 = generate_key_pairs()
            sk2, pk2 = generate_key_pairs()
            self.sk1, self.sk2 = private_key_to_bytes(sk1), private_key_to_bytes(sk2)
            return public_key_to_bytes(pk1), public_key_to_bytes(pk2)

    def share(self, keys: PublicKeys, threshold: int) -> dict[int, bytes]:
        """Stage 1: share both secrets; return the ciphertext for each other client."""
        with self.clock("share"):
            self.seed = os.urandom(32)
            seed_shares = create_shares(self.seed, threshold, len(keys))
            sk1_shares = create_shares(self.sk1, threshold, len(keys))
        ciphertexts: dict[int, bytes] = {}
        for (nid, (_, pk2)), *pair in zip(keys.items(), seed_shares, sk1_shares, strict=True):
            if nid == self.nid:
                self.shares[nid] = (pair[0], pair[1])
                continue
            with self.clock("key"):
                key = generate_shared_key(bytes_to_private_key(self.sk2), bytes_to_public_key(pk2))
                self.share_keys[nid] = key
            with self.clock("share"):
                plaintext = share_keys_plaintext_concat(self.nid, nid, *pair)
                ciphertexts[nid] = encrypt(key, plaintext)
        return ciphertexts

    def receive(self, ciphertexts: dict[int, bytes]) -> None:
        """Stage 2, first half: decrypt and keep the shares of the others."""
        with self.clock("share"):
            for nid, ciphertext in ciphertexts.items():
                plaintext = decrypt(self.share_keys[nid], ciphertext)
                src, dst, seed_share, sk1_share = share_keys_plaintext_separate(plaintext)
                if (src, dst) != (nid, self.nid):
                    raise RuntimeError(f"client {self.nid}: a share from {src} for {dst}")
                self.shares[nid] = (seed_share, sk1_share)

    def mask(self, vector: Vector, keys: PublicKeys) -> Vector:
        """Stage 2, second half: return the masked vector."""
        shape = get_parameters_shape(vector)
        with self.clock("mask"):
            vector = parameters_addition(vector, pseudo_rand_gen(self.seed, MODULUS, shape))
        for nid in self.share_keys:
            with self.clock("key"):
                sk1, pk1 = bytes_to_private_key(self.sk1), bytes_to_public_key(keys[nid][0])
                key = generate_shared_key(sk1, pk1)
            with self.clock("mask"):
                add = parameters_addition if self.nid > nid else parameters_subtraction
                vector = add(vector, pseudo_rand_gen(key, MODULUS, shape))
        with self.clock("mask"):
            masked: Vector = parameters_mod(vector, MODULUS)
        return masked


def serve(
    clock: Clock,
    vectors: Iterable[Vector],
    survivors: list[int],
    keys: PublicKeys,
    shares: dict[int, list[bytes]],
    known: dict[int, bytes],
) -> Vector:
    """Sum the survivors' vectors and unmask the sum.

    A secret is combined from `shares`, or taken from `known` where its shares are absent; one that
    is in both must agree.
    """
    total: Vector | None = None
    for vector in vectors:
        with clock("sum"):
            total = vector if total is None else parameters_addition(total, vector)
    if total is None:
        raise ValueError("no vectors")
    with clock("sum"):
        total = parameters_mod(total, MODULUS)
    shape = get_parameters_shape(total)
    alive = set(survivors)
    for count, nid in enumerate(keys, 1):
        if nid in shares:
            with clock("seed share" if nid in alive else "key share"):
                secret = combine_shares(shares[nid])
            if known.get(nid, secret) != secret:
                raise RuntimeError(f"the combined secret of client {nid} is wrong")
        else:
            secret = known[nid]
        if nid in alive:
            with clock("mask"):
                total = parameters_subtraction(total, pseudo_rand_gen(secret, MODULUS, shape))
        else:
            for other in survivors:
                with clock("key"):
                    sk1, pk1 = bytes_to_private_key(secret), bytes_to_public_key(keys[other][0])
                    key = generate_shared_key(sk1, pk1)
                with clock("mask"):
                    add = parameters_addition if nid > other else parameters_subtraction
                    total = add(total, pseudo_rand_gen(key, MODULUS, shape))
        if count % 10 == 0:
            progress(f"server: {count} of {len(keys)} clients")
    with clock("mask"):
        result: Vector = parameters_mod(total, MODULUS)
    return result


def check(number: int = 6, length: int = 50, threshold: int = 4) -> None:
    """Run a small instance with one dropout from end to end; raise if the sum is wrong."""
    rng = np.random.default_rng()
    clients = {nid: Client(nid) for nid in range(number)}
    keys = {nid: client.setup() for nid, client in clients.items()}
    sent = {nid: client.share(keys, threshold) for nid, client in clients.items()}
    for nid, client in clients.items():
        client.receive({src: sent[src][nid] for src in clients if src != nid})
    inputs = rng.integers(0, INPUT_RANGE, (number, length), dtype=np.int32)
    dropout = 2
    survivors = [nid for nid in clients if nid != dropout]
    holders = [clients[nid] for nid in survivors]
    shares = {nid: [holder.shares[nid][nid == dropout] for holder in holders] for nid in clients}
    vectors = (clients[nid].mask([inputs[nid]], keys) for nid in survivors)
    (total,) = serve(Clock(), vectors, survivors, keys, shares, {})
    if not np.array_equal(total, inputs[survivors].sum(axis=0, dtype=np.int64) % MODULUS):
        raise RuntimeError("check failed: the unmasked sum is not the plain sum")


def split_sample(sample: int, alive: int, dead: int) -> tuple[int, int]:
    """Divide the secrets to combine between survivors and dropouts, at least one of each."""
    if dead == 0:
        return sample, 0
    of_dead = min(max(1, round(sample * dead / (alive + dead))), sample - 1)
    return sample - of_dead, of_dead


def measure_client(number: int, length: int, threshold: int) -> dict[str, float]:
    """Time one client; the work of the others is not timed."""
    others = {nid: Client(nid).setup() for nid in range(number)}
    client = Client(number // 2)
    keys = {**others, client.nid: client.setup()}
    client.share(keys, threshold)
    own = client.shares[client.nid]  # the others' shares have the same sizes
    client.receive(
        {
            nid: encrypt(key, share_keys_plaintext_concat(nid, client.nid, *own))
            for nid, key in client.share_keys.items()
        }
    )
    vector = np.random.default_rng(0).integers(0, INPUT_RANGE, length, dtype=np.int32)
    client.mask([vector], keys)
    seconds = client.clock.seconds
    return {
        "client_seconds": sum(seconds.values()),
        "client_share_seconds": seconds["share"],
        "client_mask_seconds": seconds["mask"],
    }


def measure_server(
    number: int,
    length: int,
    dropouts: int,
    threshold: int,
    sample: int,
) -> dict[str, float]:
    """Time the server, combining `sample` secrets; the work of the clients is not timed."""
    rng = np.random.default_rng(0)
    dead = set(rng.permutation(number)[:dropouts].tolist())
    survivors = [nid for nid in range(number) if nid not in dead]
    clients = {nid: Client(nid) for nid in range(number)}
    keys = {nid: client.setup() for nid, client in clients.items()}
    known = {nid: clients[nid].sk1 if nid in dead else os.urandom(32) for nid in clients}

    of_alive, of_dead = split_sample(sample, len(survivors), dropouts)
    chosen = survivors[:of_alive] + sorted(dead)[:of_dead]
    progress(f"server: preparing the shares of {len(chosen)} secrets (not timed)")
    shares: dict[int, list[bytes]] = {}
    for nid in chosen:
        made = create_shares(known[nid], threshold, number)
        shares[nid] = [made[holder] for holder in survivors]

    vectors = ([rng.integers(0, MODULUS, length, dtype=np.int64)] for _ in survivors)
    clock = Clock()
    serve(clock, vectors, survivors, keys, shares, known)
    seconds = clock.seconds
    share = seconds["seed share"] * len(survivors) / of_alive
    if of_dead:
        share += seconds["key share"] * dropouts / of_dead
    return {
        "server_seconds": share + seconds["sum"] + seconds["key"] + seconds["mask"],
        "server_share_seconds": share,
        "server_mask_seconds": seconds["mask"],
    }


def progress(text: str) -> None:
    """Say on stderr how far the run is."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        description="CPU time of Flower's SecAgg+ primitives for one client and the server."
    )
    parser.add_argument("--clients", type=int, required=True, metavar="N", help="clients in all")
    parser.add_argument("--length", type=int, required=True, metavar="L", help="vector length")
    parser.add_argument(
        "--dropout",
        type=float,
        required=True,
        metavar="F",
        help="share of the clients, 0 to 1, that drop out after sharing keys and before upload",
    )
    parser.add_argument(
        "--threshold",
        type=int,
        metavar="T",
        help="shares needed to recover a secret (default: floor(2N/3)+1)",
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="R", help="report medians of R runs (default: 1)"
    )
    parser.add_argument(
        "--server-sample",
        type=int,
        metavar="K",
        help="combine only K of the N secrets, taken from survivors and dropouts in proportion, "
        "and scale the time of each kind linearly (default: all)",
    )
    args = parser.parse_args()
    if args.threshold is None:
        args.threshold = 2 * args.clients // 3 + 1
    if args.server_sample is None:
        args.server_sample = args.clients
    args.dropouts = round(args.dropout * args.clients)
    if args.clients < 3 or args.length < 1 or args.repeat < 1:
        parser.error("--clients must be at least 3, --length and --repeat at least 1")
    if not 0 <= args.dropout < 1:
        parser.error("--dropout must be at least 0 and less than 1")
    if not 2 <= args.threshold <= args.clients - args.dropouts:
        parser.error(f"--threshold {args.threshold} must be 2 to the number of survivors")
    if not 2 <= args.server_sample <= args.clients:
        parser.error("--server-sample must be 2 to the number of clients")
    return args


def main() -> None:
    """Check the primitives, time both sides and print the result."""
    args = arguments()
    progress("check: a sum of 6 clients, 1 dropout")
    check()
    runs: list[dict[str, float]] = []
    for run in range(args.repeat):
        progress(f"run {run + 1} of {args.repeat}: client")
        client = measure_client(args.clients, args.length, args.threshold)
        progress(f"run {run + 1} of {args.repeat}: server")
        size = (args.clients, args.length, args.dropouts)
        server = measure_server(*size, args.threshold, args.server_sample)
        runs.append(client | server)
    result = {
        "flwr_version": version("flwr"),
        "clients": args.clients,
        "length": args.length,
        "dropout": args.dropout,
        "threshold": args.threshold,
        **{name: round(median(run[name] for run in runs), 6) for name in runs[0]},
        "server_sampled": f"{args.server_sample}/{args.clients}",
        "checked": True,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
