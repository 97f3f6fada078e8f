"""Files that a session writes for people on request: a summary for a CI job, and observed expectations.

What may live here: the two options, checked before anything starts and served at the end. A session does not detect CI
by itself, and writes nothing without its option.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.expect import Expectation, parse_expectations
from pytest_cloudbench.load.merging.entries import Finding, claim_names
from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.support import opening


class Outputs:
    """The files that one session writes. Raises UsageError and ConfigError for files that cannot be written.

    Args:
        option: pytest's options.
        run_id: the session's id.
    """

    def __init__(self, option: Any, run_id: str) -> None:
        self._run_id = run_id
        self._summary = Path(option.cloudbench_summary) if option.cloudbench_summary else None
        self._updated = Path(option.cloudbench_update_expectations) if option.cloudbench_update_expectations else None
        if self._summary is not None and (self._summary.is_dir() or not self._summary.absolute().parent.is_dir()):
            raise UsageError(f"--cloudbench-summary {self._summary}: expected a file in a folder that exists")
        if option.cloudbench_report and Path(option.cloudbench_report).is_dir():  # of others the folder is made
            raise UsageError(f"--cloudbench-report {option.cloudbench_report}: expected a file, and this is a folder")
        if self._updated is not None:
            from pytest_cloudbench.results import expectations
            from pytest_cloudbench.support import extras

            extras.require_extra("expectations", f"cloudbench_update_expectations {self._updated}")
            expectations.check_file(self._updated)

    def read_judging(self, path: str) -> list[Expectation]:
        """Return the claims of a file that judge this session. Those that it renews itself do not.

        Raises UsageError.
        """
        claims = parse_expectations(opening.read_text(path, "[[expect]] tables"), path)
        if self._updated is None or self._updated.resolve() != Path(path).resolve():
            return claims
        from pytest_cloudbench.judge.observed import is_observed

        return [claim for claim in claims if not is_observed(claim)]

    def write(self, findings: Sequence[Finding], comparisons: Sequence[Finding], remark: str) -> Iterator[str]:
        """Write the files, and yield a line for each.

        Bounds follow from ``findings``, and ``remark`` has pytest's counts. Raises ResultsError and ConfigError.
        """
        if self._updated is not None:
            yield self._update_expectations(self._updated, findings)
        if self._summary is not None:
            self._append_summary(self._summary, [*findings, *comparisons], remark)
            yield f"cloudbench: the summary is in {self._summary}"

    def _append_summary(self, path: Path, findings: Sequence[Finding], remark: str) -> None:
        """Append the summary to a file, into which other steps of a CI job may write, too."""
        from pytest_cloudbench.report.export import StoredRun
        from pytest_cloudbench.report.summary import render_summary

        entries = [(finding.nodeid, finding.info) for finding in findings]
        text = render_summary([StoredRun(self._run_id, None, "", "", entries)], remark=remark)
        try:
            with path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise ResultsError(f"--cloudbench-summary {path}: cannot be written: {error.strerror}") from error

    @staticmethod
    def _update_expectations(path: Path, findings: Sequence[Finding]) -> str:
        from pytest_cloudbench.judge.observed import observe
        from pytest_cloudbench.results import expectations

        date = datetime.datetime.now(datetime.UTC).date()
        changes = observe([_session_entry(finding) for finding in findings], expectations.read_claims(path), date)
        expectations.write_claims(path, changes)
        counts = f"{len(changes.renewed)} renewed, {len(changes.added)} added, {changes.kept} unchanged"
        left_out = "".join(f", {count} left out (the run {reason})" for reason, count in changes.left.items())
        return f"cloudbench: expectations in {path}: {counts}{left_out}; review them before you commit"


def _session_entry(finding: Finding) -> Any:
    from pytest_cloudbench.judge.observed import SessionEntry

    info, spec = finding.info, finding.provider
    names = claim_names(spec, info)
    if "/" not in spec and "\\" not in spec:  # a path holds on this machine only
        names.reverse()
    return SessionEntry(names, finding.test, finding.params, info, is_conclusion="ops_files" in info)
