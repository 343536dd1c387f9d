"""The pictures of terminals show what a terminal shows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "terminal_picture.py"


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal_picture", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["terminal_picture"] = module
    spec.loader.exec_module(module)
    return module


def shown(picture: ModuleType, text: str, columns: int = 20) -> list[str]:
    screen = picture.Screen(columns)
    screen.feed(text)
    return ["".join(character for character, _ in row) for row in screen.rows()]


def test_lines_that_are_drawn_again_are_shown_once(picture: ModuleType) -> None:
    assert shown(picture, "one\r\ntwo\r\n\x1b[2A\x1b[KONE\r\n\x1b[K2\r\n") == ["ONE", "2"]
    assert shown(picture, "50 %\r\x1b[K100 %\r\n\x1b[?25h\x1b]0;title\x07done") == ["100 %", "done"]
    assert shown(picture, "gone\r\nalso\x1b[1A\r\x1b[Jkept") == ["kept"]
    assert shown(picture, "x" * 25) == ["x" * 20, "x" * 5]


def test_a_picture_is_a_document_with_the_colours_of_its_theme(picture: ModuleType) -> None:
    screen = picture.Screen(40)
    screen.feed("\x1b[32mgood\x1b[0m <b> & \x1b[7;34m   \x1b[0m ████ ✔")
    for palette in picture.PALETTES.values():
        document = picture.svg(screen.rows(), "coterie job ls", palette, "A terminal")
        root = ElementTree.fromstring(document)
        texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "good" in texts and any("<b> &" in each for each in texts) and "coterie job ls" in texts
        assert palette["colours"][2] in document and palette["colours"][4] in document
        assert "http" not in document.replace("http://www.w3.org/2000/svg", ""), "nothing is loaded from elsewhere"


def test_a_command_has_a_terminal(picture: ModuleType) -> None:
    text, status = picture.run([sys.executable, "-c", "import sys; print(sys.stdout.isatty())"], 80)
    assert (text.strip(), status) == ("True", 0)
