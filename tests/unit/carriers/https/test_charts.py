"""Where the curves of the status page are drawn, to the tenth of a pixel, and what is written beside them."""

import re

import pytest

from sfsl.carriers.https.charts import Curve, chart


def form(value: float) -> str:
    return f"<{value:g}>"


def drawn(svg: str, kind: str = "line") -> list[list[tuple[float, float]]]:
    found = re.findall(rf'<polyline class="{kind} c\d" points="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in (at.split(",") for at in one.split())] for one in found]


def left(svg: str) -> list[tuple[float, str]]:
    """The values written beside the axis, and how high each stands."""
    return [
        (float(y), said)
        for y, said in re.findall(r'<text x="40" y="([\d.]+)" text-anchor="end">([^<]*)', svg)
    ]


def below(svg: str) -> list[tuple[float, str]]:
    return [
        (float(x), said)
        for x, said in re.findall(r'<text x="([\d.]+)" y="164" text-anchor="middle">([^<]*)', svg)
    ]


def test_points_lie_between_the_margins() -> None:
    """A field of 340 x 170 with 46 left, 10 right, 8 above and 24 below."""
    svg = chart("A & B", [Curve("a", [(1, 0.0), (2, 5.0), (3, 10.0)])], form)
    assert '<svg viewBox="0 0 340 170" role="img" aria-label="A &amp; B">' in svg
    assert drawn(svg) == [[(46.0, 146.0), (188.0, 77.0), (330.0, 8.0)]]
    assert left(svg) == [
        (pytest.approx(150 - 138 * at / 4, abs=0.06), f"&lt;{said}&gt;")
        for at, said in enumerate(("0", "2.5", "5", "7.5", "10"))
    ]
    assert re.findall(r'<line class="grid" x1="46" x2="330" y1="([\d.]+)" y2="\1"/>', svg) == [
        "146.0", "111.5", "77.0", "42.5", "8.0",
    ]  # fmt: skip
    assert below(svg) == [(46.0, "1"), (188.0, "2"), (330.0, "3")]
    assert '<circle class="c0" cx="330.0" cy="8.0" r="3"><title>a: &lt;10&gt; in round 3</title>' in svg
    assert '<span class="key c0">a <b>&lt;10&gt;</b></span>' in svg


@pytest.mark.parametrize(
    ("values", "from_zero", "ticks"),
    [
        ((0.0, 8.0), True, ["0", "2", "4", "6", "8"]),
        ((3.0, 8.1), True, ["0", "2.5", "5", "7.5", "10"]),
        ((0.61, 0.69), False, ["0.6", "0.62", "0.64", "0.66", "0.68", "0.7"]),
        ((100.0, 100.0), False, ["100", "102.5", "105", "107.5", "110"]),
        ((0.0, 0.0), True, ["0", "0.025", "0.05", "0.075", "0.1"]),
        ((-2.0, 2.0), False, ["-2", "-1", "0", "1", "2"]),
        ((0.0, 400.0), True, ["0", "100", "200", "300", "400"]),
        ((0.0, 401.0), True, ["0", "200", "400", "600"]),
        ((0.0, 17.0), True, ["0", "5", "10", "15", "20"]),
        ((0.0, 21.0), True, ["0", "10", "20", "30"]),
    ],
)
def test_an_axis_has_round_numbers_around_all_values(
    values: tuple[float, float], from_zero: bool, ticks: list[str]
) -> None:
    svg = chart("t", [Curve("a", list(enumerate(values, 1)))], lambda one: f"{one:g}", from_zero=from_zero)
    assert [said for _, said in left(svg)] == ticks
    ys = [y for line in drawn(svg) for _, y in line]
    assert all(8 <= y <= 146 for y in ys)


def test_an_axis_starts_from_zero_unless_said_otherwise() -> None:
    assert left(chart("t", [Curve("a", [(1, 5.0), (2, 6.0)])], form))[0][1] == "&lt;0&gt;"


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (4, 4, ["4"]),
        (4, 5, ["4", "5"]),
        (1, 6, ["1", "2", "3", "4", "5", "6"]),
        (1, 7, ["2", "4", "6"]),
        (10, 50, ["10", "20", "30", "40", "50"]),
        (11, 49, ["20", "30", "40"]),
        (1, 300, ["100", "200", "300"]),
    ],
)
def test_rounds_are_written_below(first: int, last: int, said: list[str]) -> None:
    svg = chart("t", [Curve("a", [(first, 1.0), (last, 2.0)])], form)
    assert [one for _, one in below(svg)] == said
    if first == last:
        assert below(svg)[0][0] == 188.0


def test_what_was_not_measured_is_left_out_and_nothing_at_all_is_said() -> None:
    gaps = Curve("a", [(1, None), (2, float("nan")), (3, 1.0), (4, float("inf"))])
    assert gaps.known == [(3, 1.0)]
    assert chart("t", [Curve("a", [(1, None)])], form) == (
        '<figure><figcaption>t</figcaption><p class="none">nothing measured yet</p></figure>'
    )
    assert "later &amp; more" in chart("t", [], form, missing="later & more")
    two = chart("t", [Curve("a", [(1, None)]), Curve("b", [(1, 2.0), (2, 1.0)])], form)
    assert 'class="line c1"' in two
    assert 'class="line c0"' not in two
    assert '<span class="key c1">b <b>&lt;1&gt;</b></span>' in two
    assert "aborted" not in two


def test_crosses_stand_at_the_foot() -> None:
    svg = chart("t", [Curve("a", [(1, 1.0), (3, 1.0)])], form, crosses=[(2, "why & how"), (3, "so")])
    assert '<path class="cross" d="M184.0,137l8,8m0,-8l-8,8"><title>why &amp; how</title></path>' in svg
    assert '<path class="cross" d="M326.0,137l8,8m0,-8l-8,8"><title>so</title></path>' in svg
    assert '<span class="key crossed">aborted <b>2</b></span>' in svg
    alone = chart("t", [], form, crosses=[(5, "so")])
    assert '<path class="cross" d="M184.0,137l8,8m0,-8l-8,8">' in alone
    assert below(alone) == [(188.0, "5")]


def test_from_thirty_points_on_means_are_drawn_over_them() -> None:
    def of(count: int) -> str:
        return chart("t", [Curve("a", [(at, float(10 * (at == count))) for at in range(1, count + 1)])], form)

    assert drawn(of(29), "faint") == []
    assert drawn(of(29))[0][-1] == (330.0, 8.0)
    faint, line = drawn(of(30), "faint")[0], drawn(of(30))[0]
    assert (len(faint), len(line)) == (30, 30)
    assert faint[-1] == (330.0, 8.0)
    assert line[-1] == (330.0, 100.0)  # a mean over three, of which one is ten: a third of the height
    flat = chart("t", [Curve("a", [(at, 1.0) for at in range(1, 41)])], form)
    assert drawn(flat, "faint") == []
    rising = chart("t", [Curve("a", [(at, float(at)) for at in range(1, 41)])], form)
    heights = [y for _, y in drawn(rising)[0]]
    means = [sum(range(max(1, at - 3), at + 1)) / min(4, at) for at in range(1, 41)]
    assert heights == [pytest.approx(146 - 138 * one / 40, abs=0.06) for one in means]
