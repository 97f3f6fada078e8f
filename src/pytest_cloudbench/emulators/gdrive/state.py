"""What one emulated account knows: its files with what Drive says of them, upload sessions, shared drives, tokens.

What may live here: the state that several groups of functions share. No HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.gdrive.answers import DriveError, not_found, refused_by_store
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.profile import Profile

APP_DATA = "appDataFolder"
"""The id of the hidden folder of an application, which is a space of its own."""
APPS = "application/vnd.google-apps."
FOLDER, SHORTCUT = f"{APPS}folder", f"{APPS}shortcut"
USER: Mapping[str, Any] = {
    "kind": "drive#user",
    "displayName": "Emulated User",
    "me": True,
    "permissionId": "01234567890123456789",
    "emailAddress": "emulated@example.com",
    "photoLink": "https://lh3.googleusercontent.com/a/emulated=s64",
}
_OWNER: dict[str, Any] = {
    "kind": "drive#permission", "id": USER["permissionId"], "type": "user", "role": "owner", "deleted": False,
    "emailAddress": USER["emailAddress"], "displayName": USER["displayName"], "photoLink": USER["photoLink"],
    "pendingOwner": False,
}  # fmt: skip
"""The permission of every file; permissions are replaced and never changed."""
_ROOT_NAME = "My Drive"


@dataclass(slots=True)
class DriveMeta:
    """What Drive knows of a file besides content, name and parent.

    ``given`` has the properties that clients set and nothing acts on; ``seq`` numbers files in order of creation.
    """

    mime: str
    created_s: float
    modified_s: float
    seq: int
    given: dict[str, Any] = field(default_factory=dict)
    trashed_s: float | None = None
    version: int = 1
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    """Revisions that are kept forever."""


@dataclass(slots=True)
class SharedDrive:
    """A shared drive; ``root`` holds its files, and has its id."""

    root: Folder
    created_s: float
    request_id: str
    given: dict[str, Any]


def meta_of(node: Node) -> DriveMeta:
    """Returns what Drive knows of a node."""
    assert isinstance(node.extra, DriveMeta)
    return node.extra


def is_document(mime: str) -> bool:
    """Returns whether a type is one of Google's own, whose files have no content of their own."""
    return mime.startswith(APPS) and mime not in (FOLDER, SHORTCUT)


def digits(tokens: Tokens, length: int) -> str:
    """Returns a number that looks random."""
    text = tokens.next("", length)
    return "1" + "".join(str(ord(letter) % 10) for letter in text[1:])


class DriveState:
    """One account. Raises DriveError if a request names something that does not exist."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.tokens = Tokens(seed)
        self._count = 0
        self._next_id = self.tokens.next("0A", 14) + "PVA"
        self.oauth: OAuth
        self.store = NodeStore(self._new_id, lambda: self.tokens.next("0B", 49), str.casefold)
        self.root, self._vault = self.store.root, Folder("", "", None)
        self.root.name, self.root.extra = _ROOT_NAME, DriveMeta(FOLDER, 0.0, 0.0, 0)
        self.app_data = Folder(self.tokens.next("1", 32), APP_DATA, self._vault)
        self.app_data.extra = DriveMeta(FOLDER, 0.0, 0.0, 0, permissions={_OWNER["id"]: _OWNER})
        self.drives: dict[str, SharedDrive] = {}
        self.free_ids: set[str] = set()
        self.sessions: dict[str, Any] = {}
        self.configure(profile)

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        store, readiness = self.store, profile.readiness
        store.quota_bytes = profile.quota.bytes
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.lifetime_s = profile.account.token_lifetime_s

    # ---------------------------------------------------------------- reads

    def find(self, file_id: str, now_s: float) -> Node:
        """Returns what reads see by an id; ``root`` is an id, too. Raises DriveError."""
        named = {"root": self.root, APP_DATA: self.app_data, self.app_data.id: self.app_data}
        node = named.get(file_id) or self.store.by_id(file_id)
        if node is None or node.deleted_s is not None or (isinstance(node, File) and node.seen(now_s) is None):
            raise not_found(file_id)
        return node

    def read(self, file_id: str, now_s: float) -> Node:
        """Like ``find``, for reads: they may still see a removed file. Raises DriveError."""
        node = self.store.by_id(file_id)
        return node if node is not None and now_s < self.store.fading_until_s(node) else self.find(file_id, now_s)

    def folder(self, file_id: str, now_s: float) -> Folder:
        """Like ``find``, for a parent. Raises DriveError."""
        node = self.find(file_id, now_s)
        if not isinstance(node, Folder):
            raise DriveError(
                403, "parentNotAFolder", "The specified parent is not a folder.", "parents"
            )  # the reason is Drive's own
        return node

    def parent(self, node: Node) -> Folder | None:
        """Returns the folder that a file is in; None for the root of a drive."""
        return None if node.parent is self._vault else node.parent

    def drive_id(self, node: Node) -> str:
        """Returns the shared drive that a file is in; empty in My Drive."""
        top = self._top(node)
        return top.id if top.parent is self._vault and top is not self.app_data else ""

    def space(self, node: Node) -> str:
        """Returns the space that a file is in: ``drive``, or the hidden one of the application."""
        return APP_DATA if self._top(node) is self.app_data else "drive"

    def _top(self, node: Node) -> Node:
        """Returns the root above a file: of My Drive, of a shared drive, or of the application's data."""
        top = node
        while top.parent is not None and top.parent is not self._vault:
            top = top.parent
        return top

    def is_trashed(self, node: Node, now_s: float) -> bool:
        """Returns whether reads see that a file, or a folder above it, is in the trash."""
        above: Node | None = node
        while above is not None:
            trashed_s = above.extra.trashed_s if isinstance(above.extra, DriveMeta) else None
            if trashed_s is not None and trashed_s + self.store.delete_delay_s <= now_s:
                return True
            above = above.parent
        return False

    def nodes(self, drive_id: str | None = "") -> Iterator[Node]:
        """Yields all files of My Drive, of a shared drive, or (None) of all."""
        if not drive_id:
            yield from self.root.below()
        for known, drive in self.drives.items():
            if drive_id is None or drive_id == known:
                yield from drive.root.below()

    # ---------------------------------------------------------------- writes

    def add(
        self, parent: Folder, name: str, meta: DriveMeta, blob: Blob | None, now_s: float, *, file_id: str = ""
    ) -> Node:
        """Add a folder (no content) or a file. Raises DriveError."""
        self._next_id = file_id
        try:
            if blob is None:
                node: Node = self.store.add_folder(parent, name, now_s)
            else:
                node = self.store.add_file(parent, name, blob, now_s, client_s=meta.modified_s)
        except StoreError as error:
            raise refused_by_store(error) from None
        finally:
            self._next_id = ""
        self.free_ids.discard(node.id)
        node.extra = meta
        return node

    def meta(self, mime: str, now_s: float) -> DriveMeta:
        """Returns what is known of a new file of this account."""
        self._count += 1
        return DriveMeta(mime, now_s, now_s, self._count, permissions={_OWNER["id"]: _OWNER})

    def write(self, node: File, blob: Blob, now_s: float) -> Version:
        """Give a file new content. Raises DriveError."""
        try:
            return self.store.add_version(node, blob, now_s, client_s=meta_of(node).modified_s)
        except StoreError as error:
            raise refused_by_store(error) from None

    def remove(self, node: Node, now_s: float) -> None:
        """Delete a file for good, with all that is in it. Raises DriveError."""
        try:
            self.store.remove(node, now_s, fades=not self.is_trashed(node, now_s))
        except StoreError:
            raise DriveError(
                403, "insufficientFilePermissions", "The root folder cannot be deleted.", "fileId"
            ) from None

    def changed(self, node: Node, now_s: float) -> None:
        """Log a change of what is known of a file."""
        meta_of(node).version += 1
        self.store.log.add(node.id, now_s)

    def add_drive(self, given: dict[str, Any], request_id: str, now_s: float) -> SharedDrive:
        """Add a shared drive."""
        self._next_id = self.tokens.next("0A", 14) + "PVA"
        root = self.store.add_folder(self._vault, given["name"], now_s)
        self._next_id = ""
        root.extra = self.meta(FOLDER, now_s)
        drive = self.drives[root.id] = SharedDrive(root, now_s, request_id, given)
        return drive

    def new_id(self) -> str:
        """Returns an id that a later request may give a new file."""
        file_id = self.tokens.next("1", 32)
        self.free_ids.add(file_id)
        return file_id

    def _new_id(self) -> str:
        return self._next_id or self.tokens.next("1", 32)
