"""What can be wrong with a template or its values, told to whoever wrote them."""

from __future__ import annotations


class TemplateError(Exception):
    """The template or a value can never be rendered as it is; trying again does not help."""
