"""The palette of the page: readable on both grounds, and no two states alike, whatever colours somebody can see."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

STYLE = Path(__file__).parents[2] / "web" / "style.css"
PARTS = STYLE.with_name("src") / "parts.tsx"
STATES = ("succeeded", "running", "preparing", "failed", "approval", "waiting")
TEXTS = ("text", "dim", "accent", *STATES)
GROUNDS = ("bg", "panel")
THEMES = ("light", "dark")
LEAST_CONTRAST = 4.5
LEAST_DISTANCE = {"light": 17.0, "dark": 23.0}
"""CIE76, of any two states."""
Colour = tuple[float, float, float]
# Machado, Oliveira and Fernandes (2009), severity 1, applied to linear light.
VISION: dict[str, tuple[Colour, Colour, Colour]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def palette(theme: str) -> dict[str, str]:
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE.read_text())
    return {name: colours[THEMES.index(theme)] for name, *colours in found}


def linear(colour: str) -> Colour:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def product(matrix: tuple[Colour, Colour, Colour], colour: Colour) -> Colour:
    red, green, blue = (sum(weight * part for weight, part in zip(row, colour, strict=True)) for row in matrix)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    lights = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def lab(colour: Colour) -> Colour:
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
    seen = product(to_xyz, (_clipped(colour[0]), _clipped(colour[1]), _clipped(colour[2])))
    x, y, z = (_curve(part / white) for part, white in zip(seen, (0.95047, 1.0, 1.08883), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _clipped(part: float) -> float:
    return min(1.0, max(0.0, part))


def _curve(part: float) -> float:
    return part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116


def distance(one: str, other: str, vision: str) -> float:
    matrix = VISION[vision]
    return math.dist(lab(product(matrix, linear(one))), lab(product(matrix, linear(other))))


@pytest.mark.parametrize("theme", THEMES)
def test_every_colour_of_text_is_readable_on_both_grounds(theme: str) -> None:
    colours = palette(theme)
    found = {(name, ground): contrast(colours[name], colours[ground]) for name in TEXTS for ground in GROUNDS}
    assert {pair: round(value, 2) for pair, value in found.items() if value < LEAST_CONTRAST} == {}
    assert contrast(colours["on-accent"], colours["accent"]) >= LEAST_CONTRAST


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_no_two_states_look_alike(theme: str, vision: str) -> None:
    colours = palette(theme)
    pairs = itertools.combinations(STATES, 2)
    found = {(a, b): round(distance(colours[a], colours[b], vision), 1) for a, b in pairs}
    assert {pair: value for pair, value in found.items() if value < LEAST_DISTANCE[theme]} == {}


def test_each_tint_of_a_party_is_there_wherever_it_is_used() -> None:
    style = STYLE.read_text()
    wanted = {str(hue) for hue in range(int(re.findall(r"HUES = (\d+)", PARTS.read_text())[0]))}
    for used in (r"--party-(\d): light-dark", r"\.party-mark\[data-hue=\"(\d)\"\]", r"\.key-line\[data-hue=\"(\d)\"\]"):
        assert set(re.findall(used, style)) == wanted, used
    assert set(re.findall(r"var\(--([\w-]+)\)", style)) <= set(re.findall(r"--([\w-]+):", style)), (
        "a colour that is none"
    )


def test_the_measures_themselves() -> None:
    assert round(contrast("#ffffff", "#000000"), 1) == 21.0
    assert round(distance("#ffffff", "#000000", "normal")) == 100
    assert distance("#ff0000", "#00ff00", "deutan") < distance("#ff0000", "#00ff00", "normal") / 2
