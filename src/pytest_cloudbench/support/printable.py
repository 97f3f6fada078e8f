"""Text from elsewhere, made safe to show: names in files, and the words of other programs, can hold anything."""

from __future__ import annotations


def printable(text: object) -> str:
    """Escape control characters, line breaks, and marks that change the direction of the following text."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))
