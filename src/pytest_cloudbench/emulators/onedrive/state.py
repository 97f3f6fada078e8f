"""What one emulated account knows: its drive, tokens, upload sessions, permissions and jobs.

What may live here: the state that several groups of functions share, and finding the item that a request is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.jobs import Jobs
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.onedrive.address import GraphAddress
from pytest_cloudbench.emulators.onedrive.answers import GraphError, not_offered
from pytest_cloudbench.emulators.onedrive.tree import GraphTree, details_of
from pytest_cloudbench.emulators.profile import Account, JobTimes
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind

_DOWNLOAD_S = 3600.0
"""How long an address for content works: "short-lived", about an hour, in the description of driveItem."""
_APP_ROOT, _APP_FOLDER = "approot", ["Apps", "pytest-cloudbench"]
_REAL_HOSTS = (b"graph.microsoft.com", b"api.onedrive.com")


@dataclass(slots=True)
class UploadSession:
    """An upload session: where the file goes, and what has arrived."""

    folder: Folder
    name: str
    behavior: str
    expires_s: float
    client_times: dict[str, float]
    hash: Any
    address: GraphAddress
    is_deferred: bool = False
    total_bytes: int | None = None
    received_bytes: int = 0
    parts: list[BytePieces] = field(default_factory=list)


@dataclass(slots=True)
class GraphPermission:
    """A permission: a sharing link, or an invitation."""

    id: str
    node_id: str
    type: str
    scope: str
    url: str
    roles: list[str]
    has_password: bool = False
    expires_s: float | None = None
    people: list[str] = field(default_factory=list)
    prevents_download: bool = False

    def is_over(self, now_s: float) -> bool:
        """Returns whether it has expired."""
        return self.expires_s is not None and self.expires_s <= now_s


@dataclass(slots=True)
class WaitingDevice:
    """A device that waits for its user to agree elsewhere (RFC 8628)."""

    user_code: str
    expires_s: float
    client: str
    scope: str
    is_agreed: bool = False


@dataclass(slots=True)
class GraphState:
    """One account."""

    tree: GraphTree
    clock: Clock
    account: Account
    job_times: JobTimes
    drive_id: str
    key: blake2b
    oauth: OAuth
    devices: dict[str, WaitingDevice] = field(default_factory=dict)
    """By device code."""
    scopes: dict[str, str] = field(default_factory=dict)
    """What an access or refresh token may do; one that is not here may do everything."""
    nonces: dict[str, str] = field(default_factory=dict)
    """What OpenID's token must repeat, by code."""
    sessions: dict[str, UploadSession] = field(default_factory=dict)
    permissions: dict[str, GraphPermission] = field(default_factory=dict)
    shared: dict[str, list[GraphPermission]] = field(default_factory=dict)
    """The same permissions by item."""
    copies: dict[str, int] = field(default_factory=dict)
    """Maps the job of a copy to the number of its entries."""
    jobs: Jobs = field(default_factory=Jobs)

    def permit(self, known: GraphPermission) -> None:
        """Add a permission."""
        self.permissions[known.id] = known
        self.shared.setdefault(known.node_id, []).append(known)

    def forbid(self, known: GraphPermission) -> None:
        """Remove a permission."""
        del self.permissions[known.id]
        self.shared[known.node_id].remove(known)

    def links_to(self, node: Node, now_s: float) -> list[GraphPermission]:
        """Returns the links to an item, and the invitations to it, that have not expired."""
        return [link for link in self.shared.get(node.id, ()) if not link.is_over(now_s)]

    def signed(self, text: str) -> str:
        """Returns a text with a signature that only this account can make."""
        signature = self.key.copy()
        signature.update(text.encode())
        return f"{text}.{signature.hexdigest()}"

    def unsigned(self, text: str) -> str | None:
        """Returns the text without its signature; None if the signature is wrong."""
        bare = text.rpartition(".")[0]
        return bare if self.signed(bare) == text else None

    def download_url(self, origin: str, file: File, version: Version, now_s: float) -> str:
        """Returns an address for content that needs no other token."""
        proof = self.signed(f"{file.id}.{version.rev}.{int(now_s + _DOWNLOAD_S)}")
        return (
            f"{origin}/personal/emulated/_layouts/15/download.aspx?UniqueId={details_of(file).guid}"
            f"&Translate=false&tempauth={proof}&ApiVersion=2.0"
        )

    def is_in_app_folder(self, address: GraphAddress) -> bool:
        """Returns whether an address is for the application's own folder, or for something in it."""
        if address.base.startswith("special/"):
            return address.base == f"special/{_APP_ROOT}"
        node = self.tree.root if address.base == "root" else self.tree.store.by_id(address.base)
        path = "" if node is None else f"{self.tree.path(node)}/{address.path or ''}/"
        return path.lower().startswith(f"/{'/'.join(_APP_FOLDER)}/".lower())

    def require_drive(self, address: GraphAddress) -> None:
        """Raise GraphError unless an address is for this account's drive."""
        given = address.drive_id
        if not given or given.lower() == self.drive_id.lower():
            return
        looks_right = (given.startswith("b!") and len(given) > 40) or (
            len(given) == 16 and all(letter in "0123456789abcdefABCDEF" for letter in given)
        )
        if looks_right:
            raise GraphError(404, "itemNotFound", "The resource could not be found.")
        raise GraphError(
            400, "invalidRequest",
            "The provided drive id appears to be malformed, or does not represent a valid drive.",
        )  # fmt: skip


@dataclass(slots=True)
class GraphRequest:
    """One request for an item or for the drive."""

    state: GraphState
    call: Call
    address: GraphAddress
    _fields: dict[str, str] | None = None

    @property
    def now_s(self) -> float:
        """When it arrived."""
        return self.call.now_s

    @property
    def tree(self) -> GraphTree:
        """The drive."""
        return self.state.tree

    @property
    def query(self) -> dict[str, str]:
        """The fields of the query, by name; OData's names may or may not begin with ``$``."""
        if self._fields is None:
            text = self.call.query.decode("utf-8", "replace")
            self._fields = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        return self._fields

    def option(self, name: str) -> str:
        """Returns an option of OData: ``$top``, or ``top``."""
        return self.query.get(f"${name}") or self.query.get(name, "")

    def require_offered_options(self) -> None:
        """Raise GraphError for an option that would be ignored here, and change the answer of the service."""
        if self.option("skip"):
            message = "$skip is not supported on this API. Only URLs returned by the API can be used to page."
            raise GraphError(400, "invalidRequest", message)
        if self.option("expand").partition("(")[0] not in ("", "children"):
            raise not_offered("expanding anything but children")
        if self.option("filter") or self.option("apply"):
            raise not_offered("$filter and $apply")

    @property
    def is_spaced(self) -> bool:
        """Whether the other part of the service answers: items of a drive by path, and what has changed in it."""
        address = self.address
        return address.drive.startswith("drives/") and (address.path is not None or address.function == "delta")

    @property
    def host(self) -> str:
        """The host that the client asked."""
        return self.call.headers.get(b"host", b"graph.microsoft.com").decode("latin-1")

    @property
    def origin(self) -> str:
        """The beginning of the request's own address."""
        return f"https://{self.host}"

    @property
    def files_origin(self) -> str:
        """The beginning of an address for content, uploads and monitors: another host if a real name was used."""
        host = self.call.headers.get(b"host", b"graph.microsoft.com")
        if host not in _REAL_HOSTS:
            return f"https://{host.decode('latin-1')}"
        is_personal = self.state.account.type == "personal"
        return f"https://{'my.microsoftpersonalcontent.com' if is_personal else 'emulated-my.sharepoint.com'}"

    def base(self) -> Node:
        """Returns the item before the path. Raises StoreError."""
        base = self.address.base
        if base.startswith("special/"):
            name = base.removeprefix("special/")
            if name == _APP_ROOT:
                return self.tree.made(self.tree.root, _APP_FOLDER, self.now_s)
            return self.tree.made(self.tree.root, [name.capitalize()], self.now_s)
        return self.tree.get(base)

    def node(self) -> Node:
        """Returns the item, which reads must see. Raises StoreError."""
        node = self.base()
        if self.address.path:
            node = self.tree.below(node, self.address.path)
        if isinstance(node, File) and node.seen(self.now_s) is None:
            raise StoreError("not_found")
        return node

    def read(self) -> Node:
        """Like ``node``, for reads: they may still see a removed file. Raises StoreError."""
        try:
            return self.node()
        except StoreError:
            fading = self._fading()
            if fading is None or fading.seen(self.now_s) is None:
                raise
            return fading

    def _fading(self) -> File | None:
        if self.address.path:
            return self.tree.fading_below(self.base(), self.address.path, self.now_s)
        node = self.tree.store.by_id(self.address.base)
        return node if isinstance(node, File) and self.tree.is_fading(node, self.now_s) else None

    def folder(self) -> Folder:
        """Returns the item, which must be a folder. Raises StoreError."""
        node = self.node()
        if not isinstance(node, Folder):
            raise StoreError("not_folder")
        return node

    def place(self) -> tuple[Folder, str]:
        """Returns folder and name of the file that a request writes; makes missing folders. Raises StoreError."""
        path = self.address.path
        if not path:
            node = self.node()
            if not isinstance(node, File) or node.parent is None:
                raise StoreError("taken")
            return node.parent, node.name
        *above, name = [part for part in path.split("/") if part]
        self.tree.check_name(name)
        folder = self.tree.made(self.base(), above, self.now_s)
        self.tree.check_path(folder, name)
        return folder, name

    def require_match(self, node: Node) -> None:
        """Raise GraphError if the client requires a version of an item other than the current one."""
        wanted = self.call.headers.get(b"if-match")
        if wanted is None or wanted == b"*":
            return
        known = details_of(node)
        tags = (etag(known), ctag(known, node))
        if wanted.decode("latin-1").removeprefix("W/") not in (*tags, *(tag.strip('"') for tag in tags)):
            message = "The resource has changed since the caller last read it; usually an eTag mismatch."
            raise GraphError(412, "resourceModified", message)

    def json_body(self) -> dict[str, Any]:
        """Returns the object in the body; an empty body is an empty object. Raises GraphError."""
        import json

        if not self.call.body.strip():
            return {}
        try:
            value = json.loads(self.call.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            message = "Unable to read JSON request payload. Please ensure it is a valid JSON object."
            raise GraphError(400, "invalidRequest", message)
        return value


def etag(known: Any) -> str:
    """Returns the tag of an item, which every change changes."""
    return f'"{{{known.guid}}},{known.tag}"'


def ctag(known: Any, node: Node) -> str:
    """Returns the tag of an item's content."""
    count = len(node.versions) if isinstance(node, File) else 0
    return f'"c:{{{known.guid}}},{count}"'


@dataclass(frozen=True, slots=True)
class GraphFunction:
    """One function of the API: its delays, and what it does."""

    kind: Kind
    run: Callable[[GraphRequest], Answer]
    takes_content: bool = False
