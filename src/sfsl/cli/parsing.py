"""What several commands read from their command line."""

from fractions import Fraction

from sfsl.errors import InputError
from sfsl.privacy import PRESETS, IndexPrivacy


def probabilities(text: str) -> list[float]:
    try:
        return [float(Fraction(part)) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r}: probabilities are written like 0.9375 or 15/16") from None


def privacy_level(text: str) -> IndexPrivacy:
    """A preset by its name, or the level with these four probabilities."""
    if text in PRESETS:
        return PRESETS[text]
    if text.count(",") != 3:
        raise InputError(
            f"{text!r} is neither a preset ({', '.join(PRESETS)}) nor four probabilities p1,p2,p3,p4"
        )
    return IndexPrivacy(*probabilities(text))


def counts_of_rounds(text: str) -> list[int]:
    """Ascending, each once."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise InputError(f"--rounds {text!r}: expected whole numbers from 1 up, such as 1,10,100")
    return numbers
