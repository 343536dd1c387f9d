"""Which command lines start a node without the parser."""

import pytest

from coterie.cli.entry import plain_start


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["start", "-c", "a.yaml"], ("a.yaml", "")),
        (["start", "--config", "a.yaml", "--root", "/srv"], ("a.yaml", "/srv")),
        (["start", "--root", "/srv", "-c", "a.yaml"], ("a.yaml", "/srv")),
        (["start", "--root", "/srv"], None),
        (["start", "-c", "--help"], None),
        (["start", "-c", "a", "-c", "b"], None),
        (["start", "-c", "a", "--domain", "b"], None),
        (["start"], None),
        (["status", "-c", "a"], None),
    ],
)
def test_the_plain_way_to_start_a_node(words: list[str], found: tuple[str, str] | None):
    assert plain_start(words) == found
