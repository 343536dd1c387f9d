from __future__ import annotations

import sys

import pytest

from coterie.base.lazy_import import lazy_import


def test_a_module_is_loaded_when_something_in_it_is_asked_for(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    colours = lazy_import("colorsys")
    assert repr(colours) == "lazy_import('colorsys')"
    assert "colorsys" not in sys.modules
    assert colours.rgb_to_hsv(1, 1, 1) == (0.0, 0.0, 1)
    assert colours.rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv


def test_what_a_module_has_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such"):
        lazy_import("colorsys").no_such  # noqa: B018


def test_a_missing_module_is_found_out_by_the_first_use():
    absent = lazy_import("coterie.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        absent.anything  # noqa: B018
