"""The state of one emulated account: its files with their metadata, upload sessions, shared drives and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.accounts import display_name_of, number_of
from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.gdrive.answers import DriveError, file_not_found, store_refusal
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.order import SortedItems
from pytest_cloudbench.emulators.profile import Profile

APP_DATA = "appDataFolder"
"""The id of the hidden folder of an application, which is a space of its own."""
APPS = "application/vnd.google-apps."
FOLDER, SHORTCUT = f"{APPS}folder", f"{APPS}shortcut"
_ADDRESS = "emulated@example.com"
_ROOT_NAME = "My Drive"


@dataclass(slots=True)
class DriveMeta:
    """The metadata of a file besides its content, name and parent.

    Clients set ``client_properties``, which the emulator merely returns. ``sequence`` numbers files in order of their
    creation.
    """

    mime: str
    created_s: float
    modified_s: float
    sequence: int
    client_properties: dict[str, Any] = field(default_factory=dict)
    trashed_s: float | None = None
    version: int = 1
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept_revisions: set[str] = field(default_factory=set)
    """The ids of revisions that are kept forever."""


@dataclass(slots=True)
class SharedDrive:
    """A shared drive. The folder ``root`` has its id, and holds its files."""

    root: Folder
    created_s: float
    request_id: str
    properties: dict[str, Any]


def drive_meta(node: Node) -> DriveMeta:
    """Return the metadata of a node."""
    assert isinstance(node.extra, DriveMeta)
    return node.extra


def creation_number(node: Node) -> int:
    """Return the number of a node in order of creation."""
    return drive_meta(node).sequence


def is_document(mime: str) -> bool:
    """Return whether a type is one of Google's own documents, which have no content of their own."""
    return mime.startswith(APPS) and mime not in (FOLDER, SHORTCUT)


def random_digits(tokens: Tokens, length: int) -> str:
    """Return a number of this many digits that looks random."""
    text = tokens.next("", length)
    return "1" + "".join(str(ord(letter) % 10) for letter in text[1:])


def _describe_user(address: str) -> Mapping[str, Any]:
    """Return the person of the account with an address."""
    number = number_of(address)
    return {
        "kind": "drive#user", "displayName": display_name_of(address), "me": True,
        "permissionId": f"{1234567890123456788 + number:020}", "emailAddress": address,
        "photoLink": "https://lh3.googleusercontent.com/a/emulated=s64",
    }  # fmt: skip


class DriveState:
    """The state of one account. Its methods raise DriveError if a request names something that does not exist."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.tokens = Tokens(seed)
        self._count = 0
        self._next_id = self.tokens.next("0A", 14) + "PVA"
        self.oauth: OAuth
        self.store = NodeStore(self._new_id, lambda: self.tokens.next("0B", 49), str.casefold)
        self.root, self._vault = self.store.root, Folder("", "", None)
        self.root.name, self.root.extra = _ROOT_NAME, DriveMeta(FOLDER, 0.0, 0.0, 0)
        self.app_data = Folder(self.tokens.next("1", 32), APP_DATA, self._vault)
        self.address = _ADDRESS
        self.files_by_creation: SortedItems[Node] = SortedItems(creation_number)
        self.drives: dict[str, SharedDrive] = {}
        self.free_ids: set[str] = set()
        self.sessions: dict[str, Any] = {}
        self.configure(profile)

    @property
    def address(self) -> str:
        """The address by which others share with this account."""
        return str(self.user["emailAddress"])

    @address.setter
    def address(self, address: str) -> None:
        self.user = _describe_user(address)
        """The person whose account this is."""
        identity = {name: self.user[name] for name in ("emailAddress", "displayName", "photoLink")}
        owner = {
            "kind": "drive#permission", "id": self.user["permissionId"], "type": "user", "role": "owner",
            "deleted": False, **identity, "pendingOwner": False,
        }  # fmt: skip
        self._owner = {owner["id"]: owner}
        """The permission that every file has. Permissions are replaced and never changed, so files can share it."""
        self.app_data.extra = DriveMeta(FOLDER, 0.0, 0.0, 0, permissions=dict(self._owner))

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        store, readiness = self.store, profile.readiness
        store.quota_bytes = profile.quota.bytes
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.account = profile.account

    # ---------------------------------------------------------------- reads

    def find_node(self, file_id: str, now_s: float) -> Node:
        """Return the node that reads see under an id. ``root`` is an id, too. Raises DriveError."""
        node: Node | None = self.root
        if file_id != "root":
            node = self.app_data if file_id in (APP_DATA, self.app_data.id) else self.store.by_id(file_id)
        if node is None or node.deleted_s is not None or not node.is_seen(now_s):
            raise file_not_found(file_id)
        return node

    def find_readable_node(self, file_id: str, now_s: float) -> Node:
        """Like ``find_node``, but also return a removed file that reads still see. Raises DriveError."""
        node = self.store.by_id(file_id)
        return node if node is not None and now_s < self.store.fading_until_s(node) else self.find_node(file_id, now_s)

    def find_folder(self, file_id: str, now_s: float) -> Folder:
        """Like ``find_node``, but raise DriveError unless the node is a folder."""
        node = self.find_node(file_id, now_s)
        if not isinstance(node, Folder):
            # The reason is Drive's own, whatever the folder is for.
            raise DriveError(403, "parentNotAFolder", "The specified parent is not a folder.", "parents")
        return node

    def parent_of(self, node: Node) -> Folder | None:
        """Return the folder of a file, or None for the root of a drive."""
        return None if node.parent is self._vault else node.parent

    def drive_id_of(self, node: Node) -> str:
        """Return the id of the shared drive of a file, which is empty in My Drive."""
        top = self._root_above(node)
        return top.id if top.parent is self._vault and top is not self.app_data else ""

    def space_of(self, node: Node) -> str:
        """Return the space of a file: ``drive``, or the hidden one of the application."""
        return APP_DATA if self._root_above(node) is self.app_data else "drive"

    def _root_above(self, node: Node) -> Node:
        """Return the root of a file, which is that of My Drive, of a shared drive or of the application's data."""
        top = node
        while top.parent is not None and top.parent is not self._vault:
            top = top.parent
        return top

    def is_trashed(self, node: Node, now_s: float) -> bool:
        """Return whether a file or a folder above it is in the trash, once reads see that."""
        ancestor: Node | None = node
        while ancestor is not None:
            if isinstance(ancestor.extra, DriveMeta) and self.trashed_s(ancestor, now_s) is not None:
                return True
            ancestor = ancestor.parent
        return False

    def trashed_s(self, node: Node, now_s: float) -> float | None:
        """Return when a file itself went to the trash, once reads see that, or None."""
        trashed_s = drive_meta(node).trashed_s
        return trashed_s if trashed_s is not None and trashed_s + self.store.delete_delay_s <= now_s else None

    def list_nodes(self, drive_id: str | None = "") -> Iterator[Node]:
        """Yield all files of My Drive, of a shared drive, or of all drives if ``drive_id`` is None."""
        if not drive_id:
            yield from self.root.below()
        for known_id, drive in self.drives.items():
            if drive_id is None or drive_id == known_id:
                yield from drive.root.below()

    # ---------------------------------------------------------------- writes

    def add_node(
        self, parent: Folder, name: str, meta: DriveMeta, blob: Blob | None, now_s: float, *, file_id: str = ""
    ) -> Node:
        """Add a folder if ``blob`` is None, or a file. Raises DriveError."""
        self._next_id = file_id
        try:
            if blob is None:
                node: Node = self.store.add_folder(parent, name, now_s)
            else:
                node = self.store.add_file(parent, name, blob, now_s, client_s=meta.modified_s)
        except StoreError as error:
            raise store_refusal(error) from None
        finally:
            self._next_id = ""
        self.free_ids.discard(node.id)
        node.extra = meta
        self.files_by_creation.add(node)
        return node

    def new_meta(self, mime: str, now_s: float) -> DriveMeta:
        """Return the metadata of a new file."""
        self._count += 1
        return DriveMeta(mime, now_s, now_s, self._count, permissions=dict(self._owner))

    def require_space(self, size_bytes: int, node: Node | None) -> None:
        """Raise DriveError if there is no space for content that is new, or takes the place of that of a file."""
        former_bytes = node.versions[-1].blob.size_bytes if isinstance(node, File) else 0
        try:
            self.store.require_space(size_bytes - former_bytes)
        except StoreError as error:
            raise store_refusal(error) from None

    def add_version(self, node: File, blob: Blob, now_s: float) -> Version:
        """Replace the content of a file by a new version. Call ``require_space`` before anything is changed."""
        return self.store.add_version(node, blob, now_s, client_s=drive_meta(node).modified_s)

    def remove_node(self, node: Node, now_s: float) -> None:
        """Delete a file or folder for good, with everything below it. Raises DriveError."""
        removed = [node, *(node.below() if isinstance(node, Folder) else ())]
        try:
            self.store.remove(node, now_s, fades=not self.is_trashed(node, now_s))
        except StoreError:
            raise DriveError(
                403, "insufficientFilePermissions", "The root folder cannot be deleted.", "fileId"
            ) from None
        for entry in removed:
            self.files_by_creation.discard(entry)

    def log_change(self, node: Node, now_s: float) -> None:
        """Log a change of the metadata of a file."""
        drive_meta(node).version += 1
        self.store.log.add(node.id, now_s)

    def log_removal(self, node: Node, now_s: float) -> None:
        """Log that a file went to the trash, from when reads see that."""
        if self.store.delete_delay_s:  # otherwise the change has been logged
            self.store.log.add(node.id, now_s, now_s + self.store.delete_delay_s)

    def add_drive(self, properties: dict[str, Any], request_id: str, now_s: float) -> SharedDrive:
        """Add a shared drive."""
        self._next_id = self.tokens.next("0A", 14) + "PVA"
        root = self.store.add_folder(self._vault, properties["name"], now_s)
        self._next_id = ""
        root.extra = self.new_meta(FOLDER, now_s)
        drive = self.drives[root.id] = SharedDrive(root, now_s, request_id, properties)
        return drive

    def reserve_id(self) -> str:
        """Return a new id that a later request may give to a new file."""
        file_id = self.tokens.next("1", 32)
        self.free_ids.add(file_id)
        return file_id

    def _new_id(self) -> str:
        return self._next_id or self.tokens.next("1", 32)
