"""The encodings by name, and the choice between them."""

from dataclasses import replace

from sfsl.errors import ParameterError
from sfsl.union.bloom import Bloom
from sfsl.union.encoding import LARGEST_IDENTITY, Encoding, Identity, Whole
from sfsl.union.sketch import Sketch

ENCODINGS = ("auto", "identity", "bloom", "sketch", "whole")


def identity(domain: int) -> Identity:
    return Identity(domain)


def bloom(domain: int, capacity: int, seed: bytes, false_positive_rate: float = 1e-4) -> Bloom:
    return Bloom(domain, capacity, seed, false_positive_rate)


def sketch(domain: int, capacity: int, seed: bytes) -> Sketch:
    return Sketch(domain, capacity, seed)


def choose(encoding: str, domain: int, capacity: int, seed: bytes) -> Encoding:
    """The encoding of that name; 'auto' is the shortest that is exact. Its ``reason`` says why.

    'auto' leaves out 'bloom', which adds indices that nobody holds: each costs rows in every later step of
    the round, and at any size where bytes matter the sketch is several times shorter anyway.
    """
    match encoding:
        case "identity":
            return identity(domain)
        case "bloom":
            return bloom(domain, capacity, seed)
        case "sketch":
            return sketch(domain, capacity, seed)
        case "whole":
            return Whole(domain)
        case "auto":
            return _shortest(domain, capacity, seed)
    raise ParameterError(f"no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")


def _shortest(domain: int, capacity: int, seed: bytes) -> Encoding:
    table = sketch(domain, capacity, seed)
    sketch_bytes, identity_bytes = table.length * table.ring.word_bytes, 4 * domain
    if domain <= LARGEST_IDENTITY and identity_bytes <= sketch_bytes:
        cells = identity(domain)
        why = f"one cell for each of {domain} indices takes {identity_bytes} bytes, a sketch {sketch_bytes}"
        return replace(cells, reason=why)
    why = (
        f"a sketch for {capacity} elements takes {sketch_bytes} bytes, "
        f"one cell for each of {domain} indices {identity_bytes}"
    )
    return replace(table, reason=why)
