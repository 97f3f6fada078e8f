"""The order of commits of the code under test, as git knows it.

Any answer may be unknown. Without git, or outside of a repository, all of them are.
"""

from __future__ import annotations

import subprocess
from functools import cached_property, lru_cache
from pathlib import Path

_HANG_S = 30.0
_MOST_COMMITS = 20_000
_USUAL_BRANCHES = ("main", "master")


class Commits:
    """The commits of the repository that a folder is in.

    Args:
        folder: any folder in it.
        branch: the default branch's name. If empty, git is asked for it.
    """

    def __init__(self, folder: Path, branch: str = "") -> None:
        self._folder, self._given_branch = folder, branch
        self.is_before = lru_cache(maxsize=4096)(self._is_before)

    @cached_property
    def head(self) -> str:
        """The commit that is checked out, or an empty text if there is none."""
        return self._ask_git("rev-parse", "--verify", "--quiet", "HEAD") or ""

    @cached_property
    def branch(self) -> str:
        """The default branch's name, or an empty text if it is not known."""
        if self._given_branch:
            return self._given_branch
        remote = self._ask_git("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD") or ""
        return remote.partition("/")[2] or next(filter(self._find_tip, _USUAL_BRANCHES), "")

    @cached_property
    def base(self) -> str:
        """The merge base of this work and the default branch, or the head itself if that branch is not known."""
        tip = self._find_tip(self.branch) if self.branch else ""
        return (self._ask_git("merge-base", "HEAD", tip) if tip else "") or self.head

    @cached_property
    def _last_before(self) -> frozenset[str]:
        """The merge base and its last ancestors. A process for each commit of 1,000 stored runs would take seconds."""
        commits = self._ask_git("rev-list", f"--max-count={_MOST_COMMITS}", self.base)
        return frozenset((commits or "").split())

    def _find_tip(self, branch: str) -> str:
        for ref in (f"refs/remotes/origin/{branch}", f"refs/heads/{branch}"):
            if commit := self._ask_git("rev-parse", "--verify", "--quiet", ref):
                return commit
        return ""

    def _is_before(self, commit: str) -> bool | None:
        """Return whether a commit is the merge base or one of its ancestors, or None if this clone does not know it."""
        if not self.base or not commit.isalnum():
            return None
        if commit in self._last_before:
            return True
        status = self._run_git("merge-base", "--is-ancestor", commit, self.base)
        return None if status is None or status.returncode not in (0, 1) else status.returncode == 0

    def first_after(self, commit: str) -> tuple[str, int]:
        """Return the first commit after another one on the way to the head, and their number, or ``("", 0)``.

        A change since ``commit`` comes from the first one at the earliest.
        """
        if not commit.isalnum():
            return "", 0
        commits = (self._ask_git("rev-list", "--reverse", f"{commit}..HEAD") or "").split()
        return (commits[0], len(commits)) if commits else ("", 0)

    def _ask_git(self, *args: str) -> str | None:
        completed = self._run_git(*args)
        return completed.stdout.strip() if completed is not None and completed.returncode == 0 else None

    def _run_git(self, *args: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                ["git", "-C", str(self._folder), *args],
                capture_output=True, text=True, errors="replace", timeout=_HANG_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
