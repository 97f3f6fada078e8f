"""The state of one emulated account: its tree, tokens, jobs, upload sessions and shared links."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.dropbox.args import Check
from pytest_cloudbench.emulators.dropbox.blocks import BlockBlob
from pytest_cloudbench.emulators.dropbox.tree import Tree
from pytest_cloudbench.emulators.jobs import Jobs, Step
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.profile import Account, JobTimes
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind


@dataclass(slots=True)
class Session:
    """An upload session, which exists until ``ends_s``. ``parts`` are by offset."""

    ends_s: float
    concurrent: bool
    closed: bool = False
    parts: dict[int, BlockBlob] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A shared link to the node ``node_id``. ``visibility`` is public, team_only or password."""

    url: str
    node_id: str
    visibility: str
    password: str | None
    expires_s: float | None
    created_s: float
    allows_download: bool = True


@dataclass(slots=True)
class FolderMember:
    """The access level of another account in a shared folder, and whether it has mounted the folder."""

    level: str
    is_mounted: bool = False


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A shared folder, with the start of sharing, the token of its preview, its settings, and members by address."""

    node_id: str
    since_s: float
    token: str
    inheritance: str
    policies: tuple[tuple[str, str], ...]
    members: dict[str, FolderMember] = field(default_factory=dict)


@dataclass(slots=True)
class TemporaryLink:
    """A link that needs no token: to a file by its ``id:`` or ``rev:``, or for the upload that ``commit`` describes."""

    ends_s: float
    source: str = ""
    commit: dict[str, Any] | None = None
    is_used: bool = False


@dataclass(slots=True)
class State:
    """The state of one account. ``peers`` returns the states of all accounts of the service."""

    tree: Tree
    clock: Clock
    account: Account
    job_times: JobTimes
    oauth: OAuth
    sessions: dict[str, Session] = field(default_factory=dict)
    links: dict[str, SharedLink] = field(default_factory=dict)
    jobs: Jobs = field(default_factory=Jobs)
    copy_references: dict[str, str] = field(default_factory=dict)
    """The ``id:`` or ``rev:`` of what each reference copies."""
    shared_folders: dict[str, SharedFolder] = field(default_factory=dict)
    temporary: dict[str, TemporaryLink] = field(default_factory=dict)
    saves: dict[str, Future[dict[str, Any]]] = field(default_factory=dict)
    address: str = "emulated@example.com"
    peers: Callable[[], Sequence[State]] = tuple

    def start_job(self, kind: str, steps: Sequence[Step], now_s: float) -> dict[str, Any]:
        """Accept a job, and return its id. Long polls check again when its entries are due."""
        job_id = self.tree.token("dbjid:", 86)
        times = self.job_times
        self.jobs.start(job_id, kind, steps, now_s, start_s=times.start_s, entry_s=times.entry_s)
        self.tree.paths.log.wake()
        return {".tag": "async_job_id", "async_job_id": job_id}


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the API.

    Attributes:
        kind: see ``skin.Kind``.
        style: ``rpc`` (argument in the body), ``upload`` (in a header, content in the body) or ``download``
            (in a header, the function makes the whole answer).
        arg: the check of the argument, or None if it takes no argument.
        run: the function itself, whose result is the answer's JSON, or a whole Answer.
        auth: ``user``, ``app`` or ``none``.
    """

    kind: Kind
    style: str
    arg: Check | None
    run: Callable[[State, dict[str, Any], Call], Any | Answer | Awaitable[Any]]
    auth: str = "user"
