"""The state of one emulated Box account: items, trash, tokens, upload sessions, shared links and events.

Names in a folder are unique, whatever their case. An item in the trash keeps its id and its space. It lies in a hidden
folder, and ``ItemMeta.former_parent`` is the folder from which it came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_cloudbench.emulators.accounts import display_name_of, number_of
from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.box.answers import BoxError, bad_parameter, store_error
from pytest_cloudbench.emulators.box.scopes import Bounds
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.oauth import Dialect, OAuth
from pytest_cloudbench.emulators.profile import Account, JobTimes
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Sink

_FIRST_USER_ID = 11446498007
_LOGIN = "emulated@example.com"
_MAX_EVENTS = 1_000_000_000
_FIRST_ID = 20_000_000_000
_MAX_NAME_LENGTH = 255
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(slots=True)
class ItemLink:
    """A link to an item. ``access`` is open, company or collaborators."""

    token: str
    access: str = "open"
    password: str | None = None
    unshared_s: float | None = None
    can_download: bool = True
    can_edit: bool = False
    vanity_name: str | None = None
    downloads: int = 0


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on a file. It is this account's own, so it hinders nobody here."""

    id: str
    created_s: float
    expires_s: float | None
    prevents_download: bool


@dataclass(slots=True)
class ItemMeta:
    """The metadata of an item besides its name, parent and content.

    Attributes:
        etag: a number that grows by one with each change of the item itself.
        former_parent: the folder that it was in before it was moved to the trash.
    """

    created_s: float
    modified_s: float
    content_created_s: float
    content_modified_s: float
    etag: int = 0
    description: str = ""
    tags: list[str] = field(default_factory=list)
    link: ItemLink | None = None
    former_parent: Folder | None = None
    trashed_s: float | None = None
    trashed_versions: dict[str, float] = field(default_factory=dict)
    """Maps the id of a version in the trash to the time at which it was moved there."""
    lock: FileLock | None = None

    def mark_changed(self, now_s: float) -> None:
        """Record that the item itself changed."""
        self.etag += 1
        self.modified_s = now_s


class MetaChanges(NamedTuple):
    """The etag of an item, and the two times of its last change, as in ``ItemMeta``."""

    etag: int
    modified_s: float
    content_modified_s: float


@dataclass(slots=True)
class PartsSession:
    """An upload session. ``parts`` maps an offset to id and content, ``file_id`` is the file that it changes."""

    id: str
    folder_id: str
    name: str
    file_id: str | None
    size_bytes: int
    part_bytes: int
    expires_s: float
    parts: dict[int, tuple[str, Blob]] = field(default_factory=dict)
    processed_s: float = 0.0


class Event(NamedTuple):
    """A change of an item that clients are notified of."""

    kind: str
    node: Node
    at_s: float


@dataclass(frozen=True, slots=True)
class BoxFunction:
    """One function of the API. ``is_open`` means that it needs no access token."""

    method: str
    path: str
    name: str
    kind: Kind
    run: Callable[[BoxState, Call], Answer | Any]
    sink: Callable[[Call], Sink] | None = None
    is_open: bool = False


def describe_user(login: str) -> dict[str, str]:
    """Return the person of the account with a login."""
    number = number_of(login)
    return {"type": "user", "id": str(_FIRST_USER_ID + number - 1), "name": display_name_of(login), "login": login}


class BoxState:
    """The state of one account. Its methods raise BoxError for requests that they refuse."""

    def __init__(self, seed: int, clock: Clock, account: Account, job_times: JobTimes, dialect: Dialect) -> None:
        self._names = Tokens(seed)
        self._last_id = _FIRST_ID + seed % 1000 * 1_000_000
        self.clock, self.account, self.job_times = clock, account, job_times
        self._is_new = True
        self.store = NodeStore(self._node_id, self.next_id, str.lower)
        self.trash = Folder("trash", "Trash", None)
        self.started_s = clock.now_s()
        self.address = _LOGIN
        self.oauth = OAuth(dialect, self.random_token, lambda: self.account.token_lifetime_s)
        self.bounds: dict[str, Bounds] = {}
        """The limits of a token, or of a code for one. A token without an entry may do everything."""
        self.current_bounds: Bounds | None = None
        """The limits of the call that is being answered."""
        self.sessions: dict[str, PartsSession] = {}
        self.committed: set[str] = set()
        """Upload sessions that became files."""
        self.links: dict[str, Node] = {}
        self.events: ChangeLog[Event] = ChangeLog()
        self.first_position = self.events.number * _MAX_EVENTS
        """The position of the first event, which is beyond every one before a reset: clients skip events they know."""
        self.comments: dict[str, Any] = {}
        self.collaborations: dict[str, Any] = {}
        self.peers: Callable[[], Sequence[BoxState]] = lambda: (self,)
        """Returns the states of all accounts of the service."""
        self.secret = self.random_token("", 32)

    @property
    def address(self) -> str:
        """The address by which others share with this account."""
        return self.user["login"]

    @address.setter
    def address(self, login: str) -> None:
        self.user = describe_user(login)
        """The person whose account this is."""

    @property
    def enterprise(self) -> dict[str, str] | None:
        """The company of the account. All accounts of the service have the same, but personal ones have none."""
        if self.account.type == "personal":
            return None
        return {"type": "enterprise", "id": "4711", "name": "Emulated Enterprise"}

    def _node_id(self) -> str:
        if self._is_new:
            self._is_new = False
            return "0"
        return self.next_id()

    def next_id(self) -> str:
        """Return the next id, which is a string of digits."""
        self._last_id += 1
        return str(self._last_id)

    def random_token(self, prefix: str, length: int) -> str:
        """Return a text that looks random, and has only letters and digits after the prefix."""
        return prefix + self._names.next("", length).replace("-", "x").replace("_", "y")

    # ---------------------------------------------------------------- finding

    def is_in_trash(self, node: Node) -> bool:
        """Return whether an item or a folder above it is in the trash."""
        ancestor: Node | None = node
        while ancestor is not None:
            if ancestor is self.trash:
                return True
            ancestor = ancestor.parent
        return False

    def _find_item(self, item_id: str, name: str, letter: str) -> Node:
        if not item_id.isascii() or not item_id.isdigit():
            raise BoxError(405, "method_not_allowed")
        node = self.store.by_id(item_id)
        is_kind = isinstance(node, Folder if letter == "d" else File)
        if node is None or not is_kind or node.deleted_s is not None:
            value = f"{letter}_{item_id}"
            message = f"Invalid value '{value}'. '{name}' with value '{value}' not found"
            raise bad_parameter(name, message, 404, "not_found")
        if self.is_in_trash(node):
            raise BoxError(404, "trashed")
        if not self.is_in_bounds(node):
            raise BoxError(403, "access_denied_insufficient_permissions")
        return node

    def is_in_bounds(self, node: Node) -> bool:
        """Return whether the token of the current call gives access to this item."""
        return self.current_bounds is None or self.current_bounds.reaches(node)

    def find_folder(self, folder_id: str, name: str = "folder") -> Folder:
        """Return the folder with an id. ``name`` is the parameter that errors name."""
        node = self._find_item(folder_id, name, "d")
        assert isinstance(node, Folder)
        return node

    def find_file(self, file_id: str) -> File:
        """Return the file with an id, whether reads see it or not."""
        node = self._find_item(file_id, "item", "f")
        assert isinstance(node, File)
        return node

    def find_visible_file(self, file_id: str, now_s: float) -> tuple[File, Version]:
        """Return a file and the version that reads see."""
        file = self.find_file(file_id)
        version = file.seen(now_s)
        if version is None:
            value = f"f_{file_id}"
            raise bad_parameter(
                "item", f"Invalid value '{value}'. 'item' with value '{value}' not found", 404, "not_found"
            )
        return file, version

    def find_readable_file(self, file_id: str, now_s: float) -> tuple[File, Version]:
        """Like ``find_visible_file``, but also return a removed file that reads still see."""
        file = self.store.by_id(file_id)
        if isinstance(file, File) and now_s < self.store.fading_until_s(file) and (version := file.seen(now_s)):
            return file, version
        return self.find_visible_file(file_id, now_s)

    def is_purged(self, file: File, now_s: float) -> bool:
        """Return whether a file was permanently removed, and reads no longer see it."""
        return file.deleted_s is not None and now_s >= self.store.fading_until_s(file)

    def visible_parent(self, node: Node) -> tuple[Folder | None, float | None]:
        """Return the folder in which reads see an item, and since when it is in the trash."""
        meta = self.meta(node)
        is_fading = meta.trashed_s is not None and self.clock.now_s() < self.store.fading_until_s(node)
        return (meta.former_parent, None) if is_fading else (node.parent, meta.trashed_s)

    def find_trashed(self, item_id: str, kind: type[Node]) -> Node:
        """Return an item that was itself moved to the trash."""
        node = self.store.by_id(item_id)
        if not isinstance(node, kind) or node.deleted_s is not None:
            raise BoxError(404, "not_found")
        if node.parent is not self.trash:
            raise BoxError(404, "trashed" if self.is_in_trash(node) else "not_trashed")
        if not self.is_in_bounds(self.meta(node).former_parent or node):
            raise BoxError(403, "access_denied_insufficient_permissions")
        return node

    def find_by_name(self, folder: Folder, name: str) -> Node | None:
        """Return the item with this name in a folder, whatever its case, or None."""
        namesakes = self.store.named(folder, name)
        return namesakes[0] if namesakes else None

    # ---------------------------------------------------------------- names

    @staticmethod
    def check_name(name: object) -> str:
        """Return a name if an item may have it."""
        if not isinstance(name, str) or not name:
            raise bad_parameter("name", "'name' is required")
        if len(name) > _MAX_NAME_LENGTH:
            raise bad_parameter("name", "Item name too long", code="item_name_too_long")
        if _FORBIDDEN.search(name) or name in (".", "..") or name.endswith(" "):
            raise bad_parameter("name", f"Invalid value '{name}'.", code="item_name_invalid")
        return name

    def find_parent(self, body: dict[str, Any]) -> Folder:
        """Return the folder that ``parent.id`` of a request names."""
        parent = body.get("parent")
        if not isinstance(parent, dict) or "id" not in parent:
            raise bad_parameter("parent", "'parent' is required")
        return self.find_folder(str(parent["id"]), "parent")

    # ---------------------------------------------------------------- writing

    def meta(self, node: Node) -> ItemMeta:
        """Return the metadata of an item."""
        if not isinstance(node.extra, ItemMeta):
            node.extra = ItemMeta(self.started_s, self.started_s, self.started_s, self.started_s)
        return node.extra

    def changes(self, node: Node, version: Version | None = None) -> MetaChanges:
        """Return the changes of an item that a read sees together with one of its versions, by default the newest.

        Later versions do not count yet. Each keeps the changes that the item had before it (``Version.extra``).
        """
        meta = self.meta(node)
        if version is None or not isinstance(node, File) or version is node.versions[-1]:
            return MetaChanges(meta.etag, meta.modified_s, meta.content_modified_s)
        following = node.versions.index(version) + 1
        former = node.versions[following].extra
        assert isinstance(former, MetaChanges)
        return former._replace(etag=meta.etag - (len(node.versions) - following))

    def log_event(self, kind: str, node: Node, now_s: float) -> None:
        """Log an event from the moment when reads see it."""
        visible_s = node.versions[-1].visible_s if isinstance(node, File) else now_s
        if kind == "ITEM_TRASH":
            visible_s = max(visible_s, self.store.fading_until_s(node))
        self.events.add(Event(kind, node, now_s), now_s, visible_s)

    def add_file(
        self, folder: Folder, name: str, blob: Blob, now_s: float, created_s: float, modified_s: float
    ) -> File:
        """Add a file whose name is free."""
        try:
            file = self.store.add_file(folder, name, blob, now_s, client_s=modified_s)
        except StoreError as error:
            raise store_error(error) from error
        file.extra = ItemMeta(now_s, now_s, created_s, modified_s)
        self.log_event("ITEM_UPLOAD", file, now_s)
        return file

    def add_version(self, file: File, blob: Blob, now_s: float, modified_s: float) -> Version:
        """Replace the content of a file by a new version."""
        try:
            former = self.changes(file)
            version = self.store.add_version(file, blob, now_s, client_s=modified_s, extra=former)
        except StoreError as error:
            raise store_error(error) from error
        meta = self.meta(file)
        meta.mark_changed(now_s)
        meta.content_modified_s = modified_s
        self.log_event("ITEM_UPLOAD", file, now_s)
        return version

    def add_folder(self, folder: Folder, name: str, now_s: float) -> Folder:
        """Add a folder whose name is free."""
        new_folder = self.store.add_folder(folder, name, now_s)
        new_folder.extra = ItemMeta(now_s, now_s, now_s, now_s)
        self.log_event("ITEM_CREATE", new_folder, now_s)
        return new_folder

    def copy(self, node: Node, folder: Folder, name: str, now_s: float) -> Node:
        """Copy an item with all its contents to a name that is free."""
        try:
            twin = self.store.copy(node, folder, name, now_s)
        except StoreError as error:
            raise store_error(error) from error
        for entry in (twin, *(twin.below() if isinstance(twin, Folder) else ())):
            original_meta = self.meta(entry)
            entry.extra = ItemMeta(now_s, now_s, original_meta.content_created_s, original_meta.content_modified_s)
        self.log_event("ITEM_COPY", twin, now_s)
        return twin

    def move(self, node: Node, folder: Folder, name: str, now_s: float) -> None:
        """Move an item to a folder in which the name is free."""
        kind = "ITEM_MOVE" if folder is not node.parent else "ITEM_RENAME"
        try:
            self.store.move(node, folder, name, now_s)
        except StoreError as error:
            raise store_error(error) from error
        self.log_event(kind, node, now_s)

    def move_to_trash(self, node: Node, now_s: float) -> None:
        """Move an item to the trash."""
        meta = self.meta(node)
        meta.former_parent, meta.trashed_s = node.parent, now_s
        meta.mark_changed(now_s)
        self.store.move(node, self.trash, node.name, now_s, fades=True)
        self.log_event("ITEM_TRASH", node, now_s)

    def purge(self, node: Node, now_s: float) -> None:
        """Permanently remove an item that is in the trash."""
        self.store.remove(node, now_s, fades=False)

    def restore(self, node: Node, folder: Folder, name: str, now_s: float) -> None:
        """Move an item out of the trash."""
        meta = self.meta(node)
        meta.former_parent = meta.trashed_s = None
        meta.mark_changed(now_s)
        self.store.move(node, folder, name, now_s)
        self.log_event("ITEM_UNDELETE_VIA_TRASH", node, now_s)

    def part_bytes(self, size_bytes: int) -> int:
        """Return the size of the parts of an upload session: 8 MiB, or more if that would make too many parts."""
        part_bytes = 8 * 1024 * 1024
        while -(-size_bytes // part_bytes) > 10_000:
            part_bytes *= 2
        return part_bytes
