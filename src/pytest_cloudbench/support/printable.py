"""Text for people: words from elsewhere, which can hold anything, made safe to show, and paths made short."""

from __future__ import annotations

from pathlib import Path


def printable(text: object) -> str:
    """Escape control characters, line breaks, and marks that change the direction of the following text."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def shorten_path(path: Path, folder: Path) -> Path:
    """Return a path as it is called in a folder, if it lies in that folder."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path
