"""What one emulated account knows: its tree, tokens, jobs, upload sessions and shared links.

What may live here: the state that several groups of functions share, and the shape of a function's entry in
the routing table. No HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.core import Tree
from pytest_cloudbench.emulators.dropbox.args import Check
from pytest_cloudbench.emulators.profile import Account
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind

__all__ = ["Function", "Job", "Link", "Session", "State"]


@dataclass(slots=True)
class Session:
    """An upload session; ``parts`` by offset."""

    concurrent: bool
    closed: bool = False
    parts: dict[int, Any] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A shared link. ``node_id`` is what it shows, ``visibility`` public, team_only or password."""

    url: str
    node_id: str
    visibility: str
    password: str | None
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class Job:
    """A finished asynchronous job: which function started it, and its result."""

    kind: str
    result: dict[str, Any]


@dataclass(slots=True)
class State:
    """One account."""

    tree: Tree
    clock: Clock
    account: Account
    access_token: str
    tokens: dict[bytes, float] = field(default_factory=dict)
    """``Authorization`` header to the second on the emulator's clock at which it expires."""
    dead_grants: set[str] = field(default_factory=set)
    sessions: dict[str, Session] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    copy_references: dict[str, str] = field(default_factory=dict)

    def start_job(self, kind: str, result: dict[str, Any]) -> dict[str, Any]:
        """Keep the result for the function's check, and answer the job's id."""
        job_id = self.tree.token("dbjid:", 86)
        self.jobs[job_id] = Job(kind, result)
        return {".tag": "async_job_id", "async_job_id": job_id}


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the API.

    Attributes:
        kind: see ``skin.Kind``.
        style: ``rpc`` (argument in the body), ``upload`` (in a header, content in the body) or ``download``
            (in a header, the function makes the whole answer).
        arg: check of the argument; None where there is none.
        run: the function itself; its result is the answer's JSON, or a whole Answer.
        auth: ``user``, ``app`` or ``none``.
    """

    kind: Kind
    style: str
    arg: Check | None
    run: Callable[[State, dict[str, Any], Call], Any | Answer | Awaitable[Any]]
    auth: str = "user"
