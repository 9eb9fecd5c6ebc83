"""Pictures for TensorBoard and the docs: attention as maps, losses as curves. Pillow comes with TensorBoard."""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Picture = NDArray[np.uint8]  # (height, width, 3)

LONGEST_PROBE = 100  # characters in one map
_CELL = 10  # pixels a character, so that a line of them fits a card of TensorBoard as it is
_MARGIN = 28
_TITLE = 200  # the least width, so that a title fits
_NO_WEIGHT, _ALL_WEIGHT = np.array([247, 251, 255]), np.array([8, 48, 107])  # from nearly white to dark blue
_HIDDEN = np.array([222, 222, 222])
_INK, _PALE = (40, 40, 40), (225, 225, 225)
_COLOURS, _LEVEL = ("#1f5fa8", "#d1495b", "#2e8b57"), "#5f6b76"
# The first that the system has is taken; else Pillow's own, which knows little more than ASCII.
_FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")


def attention_map(weights: NDArray[np.floating], characters: str, title: str) -> Picture:
    """The weights (T, T) of one head on T characters: a row for each that asks, a column for each that is heard.

    The darker a square, the larger the weight; shades follow its square root, so that small weights show. What the
    future hides is grey.
    """
    time = len(characters)
    shade = np.sqrt(np.clip(weights, 0, 1))[..., None]
    colours = _NO_WEIGHT + shade * (_ALL_WEIGHT - _NO_WEIGHT)
    colours[np.triu_indices(time, 1)] = _HIDDEN
    picture = _frame(characters).copy()
    ImageDraw.Draw(picture).text((_MARGIN, 2), title, fill=_INK, font=_font(10))
    squares = Image.fromarray(colours.round().astype(np.uint8))
    picture.paste(squares.resize((time * _CELL, time * _CELL), Image.Resampling.NEAREST), (_MARGIN, _MARGIN))
    return np.asarray(picture)


@cache
def _frame(characters: str) -> Image.Image:
    """What all maps of a text share: its characters down the left side and along the top."""
    side = _MARGIN + len(characters) * _CELL + 4
    frame = Image.new("RGB", (max(side, _TITLE), side), "white")
    for number, character in enumerate(characters):
        at = _MARGIN + number * _CELL + _CELL // 2
        _write(frame, (_MARGIN - 8, at), character, stacked=False)
        _write(frame, (at, _MARGIN - 8), character, stacked=True)
    return frame


def _write(picture: Image.Image, middle: tuple[int, int], character: str, stacked: bool) -> None:
    """One character, so that it can be told from any other: a space as a bracket, what the font lacks as its number.

    The digits of a number stand in one row or `stacked` in two.
    """
    draw, (x, y) = ImageDraw.Draw(picture), middle
    if character == " ":
        draw.line((x - 3, y, x - 3, y + 2, x + 3, y + 2, x + 3, y), fill=_INK)
        return
    sign = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, character)
    if all(_has(letter) for letter in sign):
        draw.text(middle, sign, fill=_INK, font=_font(9), anchor="mm")
        return
    number = f"{ord(character):02X}"
    if not stacked:
        draw.text((x + 6, y), number, fill=_COLOURS[1], font=_font(6), anchor="rm")
    else:
        half = len(number) // 2
        draw.text((x, y - 3), number[:half], fill=_COLOURS[1], font=_font(6), anchor="mm")
        draw.text((x, y + 3), number[half:], fill=_COLOURS[1], font=_font(6), anchor="mm")


@cache
def _has(character: str) -> bool:
    """Whether the font can draw a character; if not, it draws the box that it draws for a character that is none."""
    font, none = _font(9), "\uffff"
    return (
        character.isprintable()
        and font.getmask(character).getbbox() is not None
        and (bytes(font.getmask(character)) != bytes(font.getmask(none)))
    )


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size, layout_engine=ImageFont.Layout.BASIC)
        except OSError:
            continue
    return ImageFont.load_default(size)


def chart(
    title: str,
    x_title: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float],
) -> Picture:
    """Named curves of (x, y) points over a logarithmic x axis, and named horizontal levels, dashed, to compare with."""
    width, height, left, right, top, bottom = 640, 400, 56, 500, 34, 352
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points] + list(levels.values())
    lowest, highest = min(ys), max(ys)
    spread = (highest - lowest) or 1.0

    def across(x: float) -> float:
        return left + (right - left) * math.log2(x / min(xs)) / (math.log2(max(xs) / min(xs)) or 1.0)

    def down(y: float) -> float:
        return bottom - (bottom - top) * (y - lowest) / spread

    draw.text((left, 8), title, fill=_INK, font=_font(13))
    draw.text((right, bottom + 24), x_title, fill=_INK, font=_font(11), anchor="ra")
    for power in range(math.ceil(math.log2(min(xs))), math.floor(math.log2(max(xs))) + 1):
        x = across(2.0**power)
        draw.line((x, top, x, bottom), fill=_PALE)
        draw.text((x, bottom + 6), f"{2**power}", fill=_INK, font=_font(11), anchor="ma")
    for value in _round_numbers(lowest, highest):
        draw.line((left, down(value), right, down(value)), fill=_PALE)
        draw.text((left - 6, down(value)), f"{value:g}", fill=_INK, font=_font(11), anchor="rm")
    names: list[tuple[float, str, str]] = []
    for name, level in levels.items():
        for dash in range(left, right, 8):
            draw.line((dash, down(level), dash + 4, down(level)), fill=_LEVEL)
        names.append((down(level), name, _LEVEL))
    for number, (name, points) in enumerate(curves.items()):
        colour, line = _COLOURS[number % len(_COLOURS)], [(across(x), down(y)) for x, y in points]
        draw.line(line, fill=colour, width=2, joint="curve")
        for x, y in line:
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)
        names.append((line[-1][1], name, colour))
    lowest_free = 0.0
    for y, name, colour in sorted(names):
        lowest_free = max(y, lowest_free + 13)  # names of lines that run together stand one below the other
        draw.text((right + 8, lowest_free), name, fill=colour, font=_font(11), anchor="lm")
    return np.asarray(picture)


def _round_numbers(lowest: float, highest: float) -> list[float]:
    """Some four to ten of 1, 2 or 5 times a power of ten apart, that lie between the two."""
    rough = (highest - lowest) / 4 or 1.0
    step = next(base for base in (5, 2, 1) if base * 10 ** math.floor(math.log10(rough)) <= rough)
    step *= 10 ** math.floor(math.log10(rough))
    return [round(number * step, 12) for number in range(math.ceil(lowest / step), math.floor(highest / step) + 1)]
