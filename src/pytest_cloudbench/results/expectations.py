"""A file of recorded expectations, changed so that a reviewer sees only what changed.

Order, comments and everything that is not renewed stay as they are. New claims are added at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.expect import Expectation, parse_expectations
from pytest_cloudbench.judge.observed import ClaimChanges
from pytest_cloudbench.model import ConfigError, ResultsError, UsageError
from pytest_cloudbench.support import opening
from pytest_cloudbench.support.opening import write_whole

_HEADER = "# Expectations: bounds that tests are held to, each with its source and date.\n"


def check_file(path: Path) -> None:
    """Check before a session that a file can be read and written. Raises UsageError and ConfigError."""
    option = f"cloudbench_update_expectations {path}"
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option}: expected a file")
    read_claims(path)


def read_claims(path: Path) -> list[Expectation]:
    """Return the claims in a file, which are none if it does not exist. Raises ConfigError."""
    return parse_expectations(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"cannot be read: {opening.explain_error(error)}") from error


def write_claims(path: Path, changes: ClaimChanges) -> bool:
    """Write changed claims. Return False, and leave the file untouched, if there are none.

    Raises ResultsError, or ConfigError if the file has changed since it was read and is no longer valid.
    """
    if not (changes.renewed or changes.added):
        return False
    text = _read_text(path) or _HEADER
    expected_claims = parse_expectations(text, str(path))
    for index, claim in changes.renewed.items():
        expected_claims[index] = claim
    text = _append_claims(_renew_claims(text, changes), changes)
    if parse_expectations(text, str(path)) != [*expected_claims, *changes.added]:
        raise ResultsError(f"{path}: is laid out in a way that cannot be changed safely; write it as [[expect]] tables")
    _replace_file(path, text)
    return True


def _renew_claims(text: str, changes: ClaimChanges) -> str:
    if not changes.renewed:
        return text
    import tomlkit

    document = tomlkit.parse(text)
    tables: Any = document["expect"]
    for index, claim in changes.renewed.items():
        for key in ("at_least", "at_most", "source", "date"):
            if (value := getattr(claim, key)) is not None:
                tables[index][key] = value
    return tomlkit.dumps(document)


def _append_claims(text: str, changes: ClaimChanges) -> str:
    """Return the text with new claims at its end, in the style of the examples in the docs."""
    import tomlkit

    newline = "\r\n" if "\r\n" in text else "\n"
    for claim in changes.added:
        fields = {key: getattr(claim, key) for key in ("provider", "metric", "at_least", "at_most", "source", "date")}
        lines = [f"{key} = {tomlkit.item(value).as_string()}" for key, value in fields.items() if value is not None]
        where = ", ".join(f"{tomlkit.key(key).as_string()} = {tomlkit.item(value).as_string()}"
                          for key, value in claim.where.items())  # fmt: skip
        text = text if text.endswith("\n") else text + newline
        text += newline.join(["", "[[expect]]", *lines, f"where = {{ {where} }}", ""])
    return text


def _replace_file(path: Path, text: str) -> None:
    """Write the whole file at once. A link stays a link."""
    path = path.resolve()
    try:
        write_whole(path, lambda file: file.write(text.encode()), keeps_mode=path.exists())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
