"""Pictures show what they are given: dark where the weight is, high where the loss is, every character told apart."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from training import pictures
from training.pictures import Picture, attention_map, chart

CELL, MARGIN = pictures._CELL, pictures._MARGIN


@pytest.fixture(autouse=True)
def forget_fonts() -> Iterator[None]:
    """Fonts and what was drawn with them are kept from one picture to the next, but not from one test to the next."""
    for cached in (pictures._font, pictures._has, pictures._frame):
        cached.cache_clear()
    yield
    for cached in (pictures._font, pictures._has, pictures._frame):
        cached.cache_clear()


def square(picture: Picture, row: int, column: int) -> list[int]:
    """The colour in the middle of one square of a map."""
    colour: list[int] = picture[MARGIN + row * CELL + CELL // 2, MARGIN + column * CELL + CELL // 2].tolist()
    return colour


def test_the_darker_the_larger_the_weight_and_the_future_is_grey() -> None:
    weights = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0, 0.25, 0.75]])
    picture = attention_map(weights, "abc", "a title")
    assert picture.dtype == np.uint8
    for row, column in ((0, 1), (0, 2), (1, 2)):
        assert square(picture, row, column) == [222, 222, 222]
    lightest_first = sorted(
        (weights[row, column], square(picture, row, column)) for row in range(3) for column in range(row + 1)
    )
    reds = [colour[0] for _, colour in lightest_first]
    assert reds == sorted(reds, reverse=True)
    assert lightest_first[0][1] == [247, 251, 255]
    assert lightest_first[-1][1] == [8, 48, 107]
    # The square root: a quarter of the weight is half of the shade.
    assert square(picture, 2, 1) == [round((247 + 8) / 2), round((251 + 48) / 2), round((255 + 107) / 2)]


def labels(characters: str) -> tuple[Picture, Picture]:
    """What stands beside and above the squares of a map."""
    picture = attention_map(np.eye(len(characters)), characters, "")
    return picture[MARGIN:, :MARGIN], picture[:MARGIN, MARGIN : MARGIN + len(characters) * CELL]


@pytest.mark.parametrize("font", ["the system's", "Pillow's own"])
def test_every_character_is_told_from_any_other(font: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if font == "Pillow's own":  # it knows little more than ASCII
        monkeypatch.setattr(pictures, "_FONTS", ())
    drawn = {character: labels(character) for character in "aAé日本🙂🙃 ·_\n\t\r\0\u200b\u0301\ue000\u093f\u094d\u0e31"}
    for left, right in combinations(drawn, 2):
        for side in (0, 1):
            assert not np.array_equal(drawn[left][side], drawn[right][side]), (left, right)


def test_the_characters_stand_in_order_on_both_axes() -> None:
    side, top = labels("ab")
    first, second = labels("a"), labels("b")
    assert np.array_equal(side[:CELL], first[0][:CELL])
    assert np.array_equal(side[CELL : 2 * CELL], second[0][:CELL])
    assert np.array_equal(top[16:, :CELL], first[1][16:, :CELL])
    assert np.array_equal(top[16:, CELL:], second[1][16:, :CELL])


def test_a_chart_is_high_where_the_values_are() -> None:
    picture = chart("title", "x", {"curve": [(1, 3.0), (2, 2.0), (4, 1.0)]}, {"level": 2.0})
    rows, columns = np.nonzero((picture[:, :505] == [31, 95, 168]).all(-1))
    left, middle, right = (rows[abs(columns - at) <= 1].mean() for at in (columns.min(), 278, columns.max()))
    assert left < middle < right
    assert middle == pytest.approx((left + right) / 2, abs=2)  # a logarithmic axis: 2 lies halfway from 1 to 4
    dashes, _ = np.nonzero((picture[:, 56:500] == [95, 107, 118]).all(-1))
    assert dashes.mean() == pytest.approx(middle, abs=2)


@pytest.mark.parametrize("points", [[(1, 2.0)], [(1, 0.0), (2, 0.0)], [(1, 1e-9), (3, 1e9)]])
def test_odd_values_make_a_chart_too(points: list[tuple[float, float]]) -> None:
    assert chart("t", "x", {"c": points}, {}).shape == (400, 640, 3)


def test_round_numbers_lie_between() -> None:
    assert pictures._round_numbers(1.65, 2.55) == [1.8, 2.0, 2.2, 2.4]
    assert pictures._round_numbers(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert pictures._round_numbers(5, 5) == [5]
