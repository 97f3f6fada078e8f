"""A file of recorded expectations, changed so that a reviewer sees only what changed.

What may live here: reading such a file, and writing observed claims into it. Order, comments and everything that is
not renewed stay as they are; new claims stand at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.expect import Expectation, parse_expectations
from pytest_cloudbench.judge.observed import ClaimChanges
from pytest_cloudbench.model import ConfigError, ResultsError, UsageError
from pytest_cloudbench.support.opening import write_whole

_HEAD = "# Expectations: bounds that tests are held to, each with its source and date.\n"


def check(path: Path) -> None:
    """Check before a session that its file can be read and written. Raises UsageError and ConfigError."""
    option = f"--cloudbench-update-expectations {path}"
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option}: expected a file")
    read(path)


def read(path: Path) -> list[Expectation]:
    """Returns the claims in the file, none if it does not exist. Raises ConfigError."""
    return parse_expectations(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write(path: Path, changes: ClaimChanges) -> bool:
    """Write changed claims. Returns whether there were any; without one the file is not touched.

    Raises ResultsError, ConfigError if the file has changed since it was read and is no longer valid.
    """
    if not (changes.renewed or changes.added):
        return False
    text = _text(path) or _HEAD
    wanted = parse_expectations(text, str(path))
    for place, claim in changes.renewed.items():
        wanted[place] = claim
    text = _added(_renewed(text, changes), changes)
    if parse_expectations(text, str(path)) != [*wanted, *changes.added]:
        raise ResultsError(f"{path}: is laid out in a way that cannot be changed safely; write it as [[expect]] tables")
    _replace(path, text)
    return True


def _renewed(text: str, changes: ClaimChanges) -> str:
    if not changes.renewed:
        return text
    import tomlkit

    document = tomlkit.parse(text)
    tables: Any = document["expect"]
    for place, claim in changes.renewed.items():
        for key in ("at_least", "at_most", "source", "date"):
            if (value := getattr(claim, key)) is not None:
                tables[place][key] = value
    return tomlkit.dumps(document)


def _added(text: str, changes: ClaimChanges) -> str:
    """Returns the text with new claims at its end, in the manner of the documents' examples."""
    import tomlkit

    newline = "\r\n" if "\r\n" in text else "\n"
    for claim in changes.added:
        told = {key: getattr(claim, key) for key in ("provider", "metric", "at_least", "at_most", "source", "date")}
        lines = [f"{key} = {tomlkit.item(value).as_string()}" for key, value in told.items() if value is not None]
        where = ", ".join(f"{tomlkit.key(key).as_string()} = {tomlkit.item(value).as_string()}"
                          for key, value in claim.where.items())  # fmt: skip
        text = text if text.endswith("\n") else text + newline
        text += newline.join(["", "[[expect]]", *lines, f"where = {{ {where} }}", ""])
    return text


def _replace(path: Path, text: str) -> None:
    """Write the whole file at once; one that is a link stays a link."""
    path = path.resolve()
    try:
        write_whole(path, lambda file: file.write(text.encode()), keeps_mode=path.exists())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
