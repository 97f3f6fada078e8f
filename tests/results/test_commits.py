"""Answers of git about commits: before the merge base, after it, unknown, and without a repository or git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.results.commits import Commits


def git(folder: Path, *args: str) -> str:
    config = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *author, *args], capture_output=True, text=True, check=True, env=os.environ | config
    )
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository's folder and its commits by name: two on main, then two on a branch and one more on main."""
    git(tmp_path, "init", "-q", "-b", "main")
    ids = {"first": commit(tmp_path, "first"), "base": commit(tmp_path, "base")}
    git(tmp_path, "checkout", "-q", "-b", "feature")
    ids |= {"mine": commit(tmp_path, "mine"), "last": commit(tmp_path, "last")}
    git(tmp_path, "checkout", "-q", "main")
    ids["theirs"] = commit(tmp_path, "theirs")
    git(tmp_path, "checkout", "-q", "feature")
    return tmp_path, ids


def test_commits_up_to_the_merge_base_are_before(repository: tuple[Path, dict[str, str]]) -> None:
    folder, ids = repository
    clone = Commits(folder)
    assert (clone.head, clone.base, clone.branch) == (ids["last"], ids["base"], "main")
    assert {name: clone.is_before(ids[name]) for name in ids} == {
        "first": True, "base": True, "mine": False, "last": False, "theirs": False,
    }  # fmt: skip
    assert clone.is_before("0" * 40) is None, "this clone does not know it"
    assert clone.is_before("--help") is None


def test_commits_of_very_many_runs_are_looked_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    ids = [commit(tmp_path, str(number)) for number in range(20)]
    run, commands = subprocess.run, list[Any]()

    def count(command: Any, **options: Any) -> Any:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", count)
    clone = Commits(tmp_path)
    assert [clone.is_before(one) for one in ids] == [True] * 20
    assert len(commands) < 10, commands


def test_the_first_suspect_is_the_first_commit_after_the_baseline(repository: tuple[Path, dict[str, str]]) -> None:
    folder, ids = repository
    clone = Commits(folder)
    assert clone.first_after(ids["base"]) == (ids["mine"], 2)
    assert clone.first_after(ids["last"]) == ("", 0)
    assert clone.first_after("0" * 40) == ("", 0)


def test_on_the_default_branch_all_of_its_commits_are_before(repository: tuple[Path, dict[str, str]]) -> None:
    folder, ids = repository
    git(folder, "checkout", "-q", "main")
    clone = Commits(folder)
    assert (clone.base, clone.is_before(ids["theirs"]), clone.is_before(ids["mine"])) == (ids["theirs"], True, False)


def test_the_user_may_name_the_default_branch(repository: tuple[Path, dict[str, str]]) -> None:
    folder, ids = repository
    assert Commits(folder, "feature").base == ids["last"]


def test_outside_of_a_repository_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    clone = Commits(tmp_path)
    assert (clone.head, clone.base, clone.branch, clone.is_before("abc")) == ("", "", "", None)
    monkeypatch.setenv("PATH", "")
    assert Commits(tmp_path).first_after("abc") == ("", 0)
