"""The encodings by name, and the choice between them."""

from dataclasses import replace

from sfsl.errors import ParameterError
from sfsl.union.bloom import Bloom
from sfsl.union.encoding import LARGEST_IDENTITY, Encoding, Identity, Whole
from sfsl.union.sketch import Sketch

ENCODINGS = ("auto", "identity", "bloom", "sketch", "whole")


identity, bloom, sketch = Identity, Bloom, Sketch


def choose(
    encoding: str, domain: int, capacity: int, seed: bytes, false_positive_rate: float = 1e-4
) -> Encoding:
    """The encoding of that name; 'auto' is the shortest that is exact. Its ``reason`` says why. 'auto' leaves
    out 'bloom', which adds indices that nobody holds: each costs rows in every later step of the round, and
    at any size where bytes matter the sketch is several times shorter anyway."""
    match encoding:
        case "identity":
            return Identity(domain)
        case "bloom":
            return Bloom(domain, capacity, seed, false_positive_rate)
        case "sketch":
            return Sketch(domain, capacity, seed)
        case "whole":
            return Whole(domain)
        case "auto":
            return _shortest(domain, capacity, seed)
    raise ParameterError(f"no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")


def _shortest(domain: int, capacity: int, seed: bytes) -> Encoding:
    table = Sketch(domain, capacity, seed)
    sketch_bytes, identity_bytes = table.length * table.ring.word_bytes, 4 * domain
    if domain <= LARGEST_IDENTITY and identity_bytes <= sketch_bytes:
        why = f"one cell for each of {domain} indices takes {identity_bytes} bytes, a sketch {sketch_bytes}"
        return Identity(domain, reason=why)
    why = (
        f"a sketch for {capacity} elements takes {sketch_bytes} bytes, "
        f"one cell for each of {domain} indices {identity_bytes}"
    )
    return replace(table, reason=why)
