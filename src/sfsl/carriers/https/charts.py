"""Small curves as SVG, for a page that loads nothing: colours come from its style, so that they are fit for
light and for dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 340, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 24
_TICKS = 4
_STEPS = (1, 2, 2.5, 5, 10)
_MANY = 30

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Curve:
    """One line of a chart: what it is called, and its points; None where nothing was measured."""

    name: str
    points: Points

    @property
    def known(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]


def chart(
    title: str,
    curves: Sequence[Curve],
    form: Callable[[float], str],
    *,
    from_zero: bool = True,
    crosses: Sequence[tuple[float, str]] = (),
    missing: str = "nothing measured yet",
) -> str:
    """Draw curves over rounds. ``form`` writes values of the axis; ``crosses`` mark rounds at its foot, each
    with what to say about it."""
    drawn = [(place, curve, curve.known) for place, curve in enumerate(curves)]
    drawn = [one for one in drawn if one[2]]
    head = f"<figure><figcaption>{escape(title)}</figcaption>"
    if not drawn and not crosses:
        return f'{head}<p class="none">{escape(missing)}</p></figure>'
    rounds = [x for _, _, points in drawn for x, _ in points] + [x for x, _ in crosses]
    values = [y for _, _, points in drawn for _, y in points] or [0.0]
    ticks = _ticks(0.0 if from_zero else min(values), max(values))
    across = _scale(min(rounds), max(rounds), _LEFT, _WIDTH - _RIGHT)
    up = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{escape(form(tick))}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{across(x):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{x:g}</text>'
        for x in _whole(min(rounds), max(rounds))
    ]
    for place, curve, points in drawn:
        smooth = _smooth(points)
        for kind, shown in (("faint", points), ("line", smooth)) if smooth != points else (("line", points),):
            line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in shown)
            parts.append(f'<polyline class="{kind} c{place}" points="{line}"/>')
        x, y = points[-1]
        said = escape(f"{curve.name}: {form(y)} in round {x:g}")
        parts.append(
            f'<circle class="c{place}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"><title>{said}</title>'
            "</circle>"
        )
    for x, said in crosses:
        at, foot = across(x), _HEIGHT - _BOTTOM
        cross = f"M{at - 4:.1f},{foot - 9}l8,8m0,-8l-8,8"
        parts.append(f'<path class="cross" d="{cross}"><title>{escape(said)}</title></path>')
    legend = "".join(
        f'<span class="key c{place}">{escape(curve.name)} <b>{escape(form(points[-1][1]))}</b></span>'
        for place, curve, points in drawn
    )
    if crosses:
        legend += f'<span class="key crossed">aborted <b>{len(crosses)}</b></span>'
    return (
        f'{head}<p class="keys">{legend}</p><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return where a value is drawn; the middle where all values are one."""
    if high == low:
        return lambda _: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers, evenly spaced, between which all values are."""
    if high <= low:
        high = low + (abs(low) or 1.0) * 0.1
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(one * size for one in _STEPS if one * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _whole(low: float, high: float) -> list[float]:
    """Return a few round numbers of rounds to write below the axis: there is no half round."""
    if high - low < 6:
        return [low + number for number in range(int(high - low) + 1)]
    step = max(1.0, _ticks(0.0, high - low)[1])
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return means over a tenth of many points: cohorts differ, and a curve is to show where it goes."""
    if len(points) < _MANY:
        return points
    width = len(points) // 10
    values = [y for _, y in points]
    return [
        (x, sum(values[max(0, at - width + 1) : at + 1]) / min(width, at + 1))
        for at, (x, _) in enumerate(points)
    ]
