"""Data files that ship with the package, or the user's own in place of them: traces, rules for flows, a page's style.

What may live here: data files, and opening them. Other modules interpret them: ``trace`` parses traces, ``traffic``
parses rules.
"""

from __future__ import annotations

from pathlib import Path

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.support import opening

_FOLDER = Path(__file__).resolve().parent
_MOST_BYTES = 1024 * opening.MIB

SHIPPED = ("iot-hour",)
"""Traces that ship, in the folder ``traces``."""


def read_trace(file: str, folder: Path | None = None) -> str:
    """Returns the text of a trace: one of ``SHIPPED`` by its name, or a file.

    Serves as ``read`` of ``arrival.arrival``. Raises ConfigError if there is no such file, or it is not UTF-8.

    Args:
        file: a name in ``SHIPPED``, or a path.
        folder: the base of relative paths: the folder of the configuration file that names the trace.
    """
    try:
        if file in SHIPPED:
            return (_FOLDER / "traces" / f"{file}.csv").read_text(encoding="utf-8")
        return opening.read_file((folder or Path()) / file, _MOST_BYTES).decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        why = opening.explain_error(error)
        raise ConfigError(file, "", f"cannot be read ({why}): expected a CSV file or {', '.join(SHIPPED)}") from error


def read_flow_rules(file: Path | None = None) -> str:
    """Returns the text of the rules that tell control flows from storage flows: the shipped rules, or a file's.

    Raises ConfigError when the file cannot be read.
    """
    return opening.read_text(file or _FOLDER / "flow-rules.toml", "a TOML file with rules")


def read_prices() -> str:
    """Returns the text of the table of what providers charge."""
    return (_FOLDER / "prices.toml").read_text(encoding="utf-8")


def read_page_part(name: str) -> str:
    """Returns the text of a part of pages: ``report`` or ``live``, with the ending ``.css`` or ``.js``."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def read_locate_table(name: str) -> str:
    """Returns the text of a table about where servers are: see ``data/locate/README.md``. It may be compressed."""
    import lzma

    folder = _FOLDER / "locate"
    plain = folder / name
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    return lzma.decompress((folder / f"{name}.xz").read_bytes()).decode()
