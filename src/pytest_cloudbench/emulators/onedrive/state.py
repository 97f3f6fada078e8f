"""The state of one emulated account (drive, tokens, upload sessions, permissions and jobs), and one request to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.accounts import display_name_of, number_of
from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.jobs import Jobs
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.onedrive.address import GraphAddress
from pytest_cloudbench.emulators.onedrive.answers import GraphError, unsupported_feature
from pytest_cloudbench.emulators.onedrive.scopes import DriveReach, drive_reach
from pytest_cloudbench.emulators.onedrive.tree import ClientTimes, GraphTree, item_changes, item_details
from pytest_cloudbench.emulators.profile import Account, JobTimes
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind

_DOWNLOAD_S = 3600.0
"""The lifetime of an address for content. The description of driveItem says "short-lived", about an hour."""
_APP_ROOT = "approot"
SPECIAL_FOLDERS: Mapping[str, str] = {
    _APP_ROOT: "Apps/pytest-cloudbench",
    "cameraroll": "Pictures/Camera Roll",
    "desktop": "Desktop",
    "documents": "Documents",
    "music": "Music",
    "photos": "Pictures",
}
"""The path of each special folder by its name ("specialFolder resource type")."""
_FIRST_ADDRESS = "emulated@example.com"
_REAL_HOSTS = ("graph.microsoft.com", "api.onedrive.com")


@dataclass(slots=True)
class UploadSession:
    """An upload session: the target of the file, and the fragments that have arrived.

    Attributes:
        folder, missing_names: an existing folder, and the names of those that are made below it with the file.
        name: that of the file.
    """

    folder: Folder
    missing_names: list[str]
    name: str
    behavior: str
    expires_s: float
    client_times: ClientTimes
    hash: Any
    address: GraphAddress
    is_deferred: bool = False
    total_bytes: int | None = None
    received_bytes: int = 0
    parts: list[BytePieces] = field(default_factory=list)


@dataclass(slots=True)
class GraphPermission:
    """A permission, which is a sharing link or an invitation."""

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

    def is_expired(self, now_s: float) -> bool:
        """Return whether the permission has expired."""
        return self.expires_s is not None and self.expires_s <= now_s


@dataclass(slots=True)
class WaitingDevice:
    """A device that waits until its user agrees elsewhere (RFC 8628)."""

    user_code: str
    expires_s: float
    client: str
    scope: str
    is_agreed: bool = False


def describe_person(address: str) -> Mapping[str, str]:
    """Return the person of the account with an address."""
    number = number_of(address)
    person_id = f"3f0c4d2e-7f1a-4c56-9a3b-{0x0E5D6C7B8A90 + number - 1:012x}"
    return {"email": address, "id": person_id, "displayName": display_name_of(address)}


@dataclass(slots=True)
class GraphState:
    """The state of one account."""

    tree: GraphTree
    clock: Clock
    account: Account
    job_times: JobTimes
    drive_id: str
    key: blake2b
    oauth: OAuth
    devices: dict[str, WaitingDevice] = field(default_factory=dict)
    """Waiting devices by device code."""
    scopes: dict[str, str] = field(default_factory=dict)
    """The scopes of access and refresh tokens. A token that is missing here has every scope."""
    nonces: dict[str, str] = field(default_factory=dict)
    """The nonces that OpenID's token must repeat, by authorization code."""
    sessions: dict[str, UploadSession] = field(default_factory=dict)
    permissions: dict[str, GraphPermission] = field(default_factory=dict)
    permissions_by_item: dict[str, list[GraphPermission]] = field(default_factory=dict)
    """The same permissions by the id of their item."""
    copies: dict[str, int] = field(default_factory=dict)
    """The number of entries of each copy, by the id of its job."""
    jobs: Jobs = field(default_factory=Jobs)
    person: Mapping[str, str] = field(default_factory=lambda: describe_person(_FIRST_ADDRESS))
    """The person whose account this is."""

    @property
    def address(self) -> str:
        """The address by which others share with this account."""
        return self.person["email"]

    @address.setter
    def address(self, address: str) -> None:
        self.person = describe_person(address)

    def add_permission(self, permission: GraphPermission) -> None:
        """Add a permission."""
        self.permissions[permission.id] = permission
        self.permissions_by_item.setdefault(permission.node_id, []).append(permission)

    def remove_permission(self, permission: GraphPermission) -> None:
        """Remove a permission."""
        del self.permissions[permission.id]
        self.permissions_by_item[permission.node_id].remove(permission)

    def active_links(self, node: Node, now_s: float) -> list[GraphPermission]:
        """Return the links and invitations to an item that have not expired."""
        return [link for link in self.permissions_by_item.get(node.id, ()) if not link.is_expired(now_s)]

    def sign_text(self, text: str) -> str:
        """Return a text with a signature that only this account can make."""
        signature = self.key.copy()
        signature.update(text.encode())
        return f"{text}.{signature.hexdigest()}"

    def verify_signature(self, text: str) -> str | None:
        """Return a signed text without its signature, or None if the signature is wrong."""
        content = text.rpartition(".")[0]
        return content if self.sign_text(content) == text else None

    def download_url(self, origin: str, file: File, version: Version, now_s: float) -> str:
        """Return an address for the content of a version. It holds its own proof, and needs no token."""
        proof = self.sign_text(f"{file.id}.{version.rev}.{int(now_s + _DOWNLOAD_S)}")
        return (
            f"{origin}/personal/emulated/_layouts/15/download.aspx?UniqueId={item_details(file).guid}"
            f"&Translate=false&tempauth={proof}&ApiVersion=2.0"
        )

    def is_in_app_folder(self, address: GraphAddress) -> bool:
        """Return whether an address names the application's own folder or an item in it."""
        if address.base.startswith("special/"):
            return address.base == f"special/{_APP_ROOT}"
        node = self.tree.root if address.base == "root" else self.tree.store.by_id(address.base)
        path = "" if node is None else f"{self.tree.path_of(node)}/{address.path or ''}/"
        return path.lower().startswith(f"/{SPECIAL_FOLDERS[_APP_ROOT]}/".lower())

    def find_reach(self, header: bytes) -> DriveReach:
        """Return the reach into the drive of the token in an ``Authorization`` header."""
        scope = self.scopes.get(header.partition(b" ")[2].decode("latin-1")) if self.scopes else None
        return DriveReach.WRITE if scope is None else drive_reach(scope)

    def require_drive(self, address: GraphAddress) -> None:
        """Raise GraphError unless an address is in the drive of this account."""
        drive_id = address.drive_id
        if not drive_id or drive_id.lower() == self.drive_id.lower():
            return
        is_well_formed = (drive_id.startswith("b!") and len(drive_id) > 40) or (
            len(drive_id) == 16 and all(letter in "0123456789abcdefABCDEF" for letter in drive_id)
        )
        if is_well_formed:
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
    parent_references: dict[str, str] = field(default_factory=dict)
    """The formatted references to parents, by the id of the parent."""
    _fields: dict[str, str] | None = None
    _files_origin: str = ""

    @property
    def now_s(self) -> float:
        """The time at which the request arrived."""
        return self.call.now_s

    @property
    def tree(self) -> GraphTree:
        """The tree of the drive."""
        return self.state.tree

    @property
    def query(self) -> dict[str, str]:
        """The fields of the query by their name. OData's names may begin with ``$`` or not."""
        if self._fields is None:
            text = self.call.query.decode("utf-8", "replace")
            self._fields = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        return self._fields

    def odata_option(self, name: str) -> str:
        """Return an option of OData, which the client may write as ``$top`` or ``top``."""
        return self.query.get(f"${name}") or self.query.get(name, "")

    def require_supported_options(self) -> None:
        """Raise GraphError for an option that the service honours and this emulator would ignore."""
        if not self.call.query:
            return
        if self.odata_option("skip"):
            message = "$skip is not supported on this API. Only URLs returned by the API can be used to page."
            raise GraphError(400, "invalidRequest", message)
        expanded = self.odata_option("expand").partition("(")[0]
        if expanded not in ("", "children"):
            raise unsupported_feature("expanding anything but children")
        is_one_item = self.call.method == "GET" and self.address.function in ("", "driveItem") and self.address.base
        if expanded and not is_one_item:
            raise unsupported_feature("expanding the children of more than one item")
        if self.odata_option("filter") or self.odata_option("apply"):
            raise unsupported_feature("$filter and $apply")

    @property
    def is_spaced(self) -> bool:
        """True if the part of the service answers whose content type has spaces: for items by path and ``delta``."""
        address = self.address
        return address.drive.startswith("drives/") and (address.path is not None or address.function == "delta")

    @property
    def host(self) -> str:
        """The host in the request."""
        return self.call.headers.get(b"host", b"graph.microsoft.com").decode("latin-1")

    @property
    def origin(self) -> str:
        """The scheme and host of the request's own address."""
        return f"https://{self.host}"

    @property
    def files_origin(self) -> str:
        """The scheme and host for content, uploads and monitors: another host if the client used a real name."""
        if not self._files_origin:
            is_personal = self.state.account.type == "personal"
            real_host = "my.microsoftpersonalcontent.com" if is_personal else "emulated-my.sharepoint.com"
            self._files_origin = f"https://{real_host if self.host in _REAL_HOSTS else self.host}"
        return self._files_origin

    def find_base(self) -> Node:
        """Return the item in the address from which its path starts. Raises StoreError."""
        base = self.address.base
        if base == "root":
            return self.tree.root
        if base.startswith("special/"):
            return self._find_special_folder(base.removeprefix("special/"))
        return self.tree.find_by_id(base)

    def _find_special_folder(self, name: str) -> Node:
        """Return a special folder, and make it if it is missing and the token may write. Raises GraphError."""
        path, tree = SPECIAL_FOLDERS.get(name), self.tree
        if path is None:
            raise GraphError(400, "invalidRequest", "The special folder identifier isn't valid")
        if self.state.find_reach(self.call.headers.get(b"authorization", b"")) is not DriveReach.READ:
            return tree.ensure_folder(tree.root, path.split("/"), self.now_s)
        try:
            return tree.find_below(tree.root, path)
        except StoreError:
            raise GraphError(403, "accessDenied", "Access denied") from None

    def find_existing_node(self) -> Node:
        """Return the item of the request for a write, which sees it before reads do. Raises StoreError."""
        node = self.find_base()
        return self.tree.find_below(node, self.address.path) if self.address.path else node

    def find_node(self) -> Node:
        """Return the item of the request. Raises StoreError unless reads see it."""
        node = self.find_existing_node()
        if not node.is_seen(self.now_s):
            raise StoreError("not_found")
        return node

    def find_readable_node(self) -> Node:
        """Like ``find_node``, but also return a removed file that reads still see. Raises StoreError."""
        try:
            return self.find_node()
        except StoreError:
            fading = self._find_fading_file()
            if fading is None or fading.seen(self.now_s) is None:
                raise
            return fading

    def _find_fading_file(self) -> File | None:
        if self.address.path:
            return self.tree.find_fading_below(self.find_base(), self.address.path, self.now_s)
        node = self.tree.store.by_id(self.address.base)
        return node if isinstance(node, File) and self.tree.is_fading(node, self.now_s) else None

    def find_folder(self) -> Folder:
        """Like ``find_node``, but raise StoreError unless the item is a folder."""
        node = self.find_node()
        if not isinstance(node, Folder):
            raise StoreError("not_folder")
        return node

    def resolve_target(self, size_bytes: int) -> tuple[Folder, str]:
        """Return the folder and name of the file to write. Raises StoreError and GraphError.

        Makes missing folders, unless there is no space for a new file of this size.
        """
        folder, missing_names, name = self.find_target()
        return self.tree.ensure_folder(folder, missing_names, self.now_s, size_bytes), name

    def find_target(self) -> tuple[Folder, list[str], str]:
        """Return where to write a file: an existing folder, the names of missing ones below it, and the file's name.

        Raises StoreError and GraphError.
        """
        path = self.address.path
        if not path:
            node = self.find_existing_node()
            if not isinstance(node, File) or node.parent is None:
                raise StoreError("taken")
            return node.parent, [], node.name
        tree, base = self.tree, self.find_base()
        names = [tree.check_name(name) for name in path.split("/") if name]
        tree.check_path(base, "/".join(names))
        return *tree.find_deepest_folder(base, names[:-1]), names[-1]

    def require_match(self, node: Node) -> None:
        """Raise GraphError if the client requires a version of an item other than the current one."""
        expected = self.call.headers.get(b"if-match")
        if expected is None or expected == b"*":
            return
        tags = (etag(node), ctag(node))
        if expected.decode("latin-1").removeprefix("W/") not in (*tags, *(tag.strip('"') for tag in tags)):
            message = "The resource has changed since the caller last read it; usually an eTag mismatch."
            raise GraphError(412, "resourceModified", message)

    def read_json_body(self) -> dict[str, Any]:
        """Return the JSON object in the body, which is empty for an empty body. Raises GraphError."""
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


def etag(node: Node, version: Version | None = None) -> str:
    """Return the tag of an item with one of its versions, by default the newest. It is new after every change."""
    return f'"{{{item_details(node).guid}}},{item_changes(node, version).tag}"'


def ctag(node: Node) -> str:
    """Return the tag of the newest content of an item."""
    count = len(node.versions) if isinstance(node, File) else 0
    return f'"c:{{{item_details(node).guid}}},{count}"'


@dataclass(frozen=True, slots=True)
class GraphFunction:
    """One function of the API. ``kind`` selects its delays, and ``run`` answers a request."""

    kind: Kind
    run: Callable[[GraphRequest], Answer]
    takes_content: bool = False
