"""Changes of a file of expectations keep all other lines as they are."""

from __future__ import annotations

import datetime
import difflib
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.judge.observed import ClaimChanges
from pytest_cloudbench.model import ConfigError, ResultsError, UsageError
from pytest_cloudbench.results import expectations

TODAY = datetime.date(2026, 11, 22)
FILE = """\
# What operations and we agreed upon.
[[expect]]
provider = "folder:x"   # the NAS
metric   = "loss_rate"
at_most  = 0.0
source = "an agreement"
date = 2026-01-01

# ClaimChanges every month.
[[expect]]
date = 2026-01-01
source = 'observed 1 s'
metric = "response_p50"
at_most = 1.5  # seconds
provider = "folder:x"
[expect.where]
test = "test_x"
"""


def claim(metric: str = "response_p50", at_most: float = 2.5, **where: Any) -> Expectation:
    return Expectation("folder:x", metric, None, at_most, 'observed 2 s, "now" \\ é', TODAY, where)


def diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "expectations.toml"
    path.write_bytes(FILE.encode())
    return path


def test_a_renewed_claim_changes_three_lines(file: Path) -> None:
    assert expectations.write_claims(file, ClaimChanges(renewed={1: claim(test="test_x")}))
    assert diff(FILE, file.read_text("utf-8")) == [
        "-date = 2026-01-01", "-source = 'observed 1 s'",
        "+date = 2026-11-22", '+source = "observed 2 s, \\"now\\" \\\\ é"',
        "-at_most = 1.5  # seconds",
        "+at_most = 2.5  # seconds",
    ]  # fmt: skip


def test_new_claims_stand_at_the_end(file: Path) -> None:
    where: dict[str, Any] = {"test": "test_y", "size bytes": 5, "on": True, "payload": 'a"b'}
    added = [claim(**where)]
    assert expectations.write_claims(file, ClaimChanges(added=added))
    assert diff(FILE, file.read_text("utf-8")) == [
        "+", "+[[expect]]", '+provider = "folder:x"', '+metric = "response_p50"', "+at_most = 2.5",
        '+source = "observed 2 s, \\"now\\" \\\\ é"', "+date = 2026-11-22",
        '+where = { test = "test_y", "size bytes" = 5, on = true, payload = "a\\"b" }',
    ]  # fmt: skip
    assert expectations.read_claims(file)[2:] == added


def test_rewriting_keeps_line_ends_and_symlink(file: Path, tmp_path: Path) -> None:
    file.write_bytes(FILE.replace("\n", "\r\n").encode())
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    expectations.write_claims(link, ClaimChanges(renewed={1: claim(test="test_x")}, added=[claim(test="test_y")]))
    data = file.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n")
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expectations.toml", "link.toml"]


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    expectations.check_file(path)
    assert not path.exists()
    assert expectations.write_claims(path, ClaimChanges(added=[claim(test="test_y")]))
    assert expectations.read_claims(path) == [claim(test="test_y")]
    assert path.read_text("utf-8").startswith("# Expectations: ")


def test_without_a_change_the_file_is_not_touched(file: Path) -> None:
    before = file.stat().st_mtime_ns
    assert not expectations.write_claims(file, ClaimChanges(kept=2))
    assert file.stat().st_mtime_ns == before


def test_claims_that_are_no_tables_are_not_changed(file: Path) -> None:
    text = 'expect = [{provider="folder:x", metric="tue", at_most=1, source="observed", date=2026-01-01}]\n'
    file.write_text(text)
    with pytest.raises((ResultsError, ConfigError)):
        expectations.write_claims(file, ClaimChanges(added=[claim()]))
    assert file.read_text() == text


def test_bad_expectation_files_are_refused_before_a_session(file: Path, tmp_path: Path) -> None:
    expectations.check_file(file)
    with pytest.raises(UsageError, match="there is no folder"):
        expectations.check_file(tmp_path / "nowhere" / "e.toml")
    with pytest.raises(UsageError, match="expected a file"):
        expectations.check_file(tmp_path)
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        expectations.check_file(file)
    file.write_text("[[expect]]\nmetric = 1\n")
    with pytest.raises(ConfigError, match="metric"):
        expectations.check_file(file)
