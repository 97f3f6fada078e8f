"""Which commits came before which: what git says of the code under test.

What may live here: questions to git, each answered or unknown. Without git, or outside of a repository, none is known.
"""

from __future__ import annotations

import subprocess
from functools import cached_property, lru_cache
from pathlib import Path

_HANG_S = 30.0
_USUAL = ("main", "master")


class Commits:
    """The commits of the repository that a folder is in.

    Args:
        folder: any folder in it.
        branch: the default branch's name; found out if empty.
    """

    def __init__(self, folder: Path, branch: str = "") -> None:
        self._folder, self._named = folder, branch
        self.is_before = lru_cache(maxsize=4096)(self._is_before)

    @cached_property
    def head(self) -> str:
        """The commit that is checked out; empty if there is none."""
        return self._ask("rev-parse", "--verify", "--quiet", "HEAD") or ""

    @cached_property
    def branch(self) -> str:
        """The default branch's name; empty if it is not known."""
        if self._named:
            return self._named
        remote = self._ask("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD") or ""
        return remote.partition("/")[2] or next(filter(self._tip, _USUAL), "")

    @cached_property
    def base(self) -> str:
        """Where this work left the default branch (the merge base); the head itself if that branch is not known."""
        tip = self._tip(self.branch) if self.branch else ""
        return (self._ask("merge-base", "HEAD", tip) if tip else "") or self.head

    def _tip(self, branch: str) -> str:
        for place in (f"refs/remotes/origin/{branch}", f"refs/heads/{branch}"):
            if found := self._ask("rev-parse", "--verify", "--quiet", place):
                return found
        return ""

    def _is_before(self, commit: str) -> bool | None:
        """Returns whether a commit is the merge base or one of its ancestors; None if this clone does not know it."""
        if not self.base or not commit.isalnum():
            return None
        status = self._run("merge-base", "--is-ancestor", commit, self.base)
        return None if status is None or status.returncode not in (0, 1) else status.returncode == 0

    def first_after(self, commit: str) -> tuple[str, int]:
        """Returns the first commit after this one on the way to the head, and how many there are; ``("", 0)`` if none.

        The first one is what a change since ``commit`` may come from at the earliest.
        """
        if not commit.isalnum():
            return "", 0
        found = (self._ask("rev-list", "--reverse", f"{commit}..HEAD") or "").split()
        return (found[0], len(found)) if found else ("", 0)

    def _ask(self, *args: str) -> str | None:
        done = self._run(*args)
        return done.stdout.strip() if done is not None and done.returncode == 0 else None

    def _run(self, *args: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                ["git", "-C", str(self._folder), *args],
                capture_output=True, text=True, errors="replace", timeout=_HANG_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
