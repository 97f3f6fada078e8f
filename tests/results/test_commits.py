"""What git says about commits: before the merge base, after it, unknown, and where there is no git at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_cloudbench.results.commits import Commits


def git(folder: Path, *args: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *args], capture_output=True, text=True, check=True, env=os.environ | own
    )
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    git(folder, "commit", "-q", "--allow-empty", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def work(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """One commit on main, then further commits on main and on a branch."""
    git(tmp_path, "init", "-q", "-b", "main")
    made = {"first": commit(tmp_path, "first"), "base": commit(tmp_path, "base")}
    git(tmp_path, "checkout", "-q", "-b", "feature")
    made |= {"mine": commit(tmp_path, "mine"), "last": commit(tmp_path, "last")}
    git(tmp_path, "checkout", "-q", "main")
    made["theirs"] = commit(tmp_path, "theirs")
    git(tmp_path, "checkout", "-q", "feature")
    return tmp_path, made


def test_commits_up_to_the_merge_base_are_before(work: tuple[Path, dict[str, str]]) -> None:
    folder, made = work
    found = Commits(folder)
    assert (found.head, found.base, found.branch) == (made["last"], made["base"], "main")
    assert {name: found.is_before(made[name]) for name in made} == {
        "first": True, "base": True, "mine": False, "last": False, "theirs": False,
    }  # fmt: skip
    assert found.is_before("0" * 40) is None, "this clone does not know it"
    assert found.is_before("--help") is None


def test_the_first_suspect_is_the_first_commit_after_the_baseline(work: tuple[Path, dict[str, str]]) -> None:
    folder, made = work
    found = Commits(folder)
    assert found.first_after(made["base"]) == (made["mine"], 2)
    assert found.first_after(made["last"]) == ("", 0)
    assert found.first_after("0" * 40) == ("", 0)


def test_on_the_default_branch_all_of_its_commits_are_before(work: tuple[Path, dict[str, str]]) -> None:
    folder, made = work
    git(folder, "checkout", "-q", "main")
    found = Commits(folder)
    assert (found.base, found.is_before(made["theirs"]), found.is_before(made["mine"])) == (made["theirs"], True, False)


def test_the_user_may_name_the_default_branch(work: tuple[Path, dict[str, str]]) -> None:
    folder, made = work
    assert Commits(folder, "feature").base == made["last"]


def test_outside_of_a_repository_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = Commits(tmp_path)
    assert (found.head, found.base, found.branch, found.is_before("abc")) == ("", "", "", None)
    monkeypatch.setenv("PATH", "")
    assert Commits(tmp_path).first_after("abc") == ("", 0)
