"""Facts about Dropbox that both of its drivers use: capabilities, credentials and the table of its errors.

What may live here: values and functions of values. Each driver has its own library to send requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from unicodedata import is_normalized
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin, kind_of_status
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.model import MIB, Capabilities, CloudError, Conflict, ErrorKind, NameRules, Verb

CAPABILITIES = Capabilities(
    digest="sha256-4mib-blocks",
    verbs=frozenset(Verb),
    revisions=True,
    ranges=True,
    conflicts=frozenset(Conflict),
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    space=True,
    names=NameRules(case_sensitive=False, max_chars=255, refused="\\"),
    max_request_bytes=150 * MIB,
    # A put above max_request_bytes, and a list of many entries, sends more of them.
    requests=dict.fromkeys(Verb, 1),
)
"""Without ``via``, which differs between the drivers."""

CREDENTIAL_SETS = (
    CredentialSet(("access_token",)),
    CredentialSet(("refresh_token", "app_key"), ("app_secret",), public=("app_key",)),
)
CLOCK_URL = "https://api.dropboxapi.com/2/check/user"
OAUTH = OAuthLogin(
    "https://www.dropbox.com/oauth2/authorize",
    "https://api.dropboxapi.com/oauth2/token",
    "https://www.dropbox.com/developers/apps",
    shows_code=True,
    extra={"token_access_type": "offline"},
    client_id="app_key",
    client_secret="app_secret",
)

SESSION_PIECE_BYTES = 16 * MIB
"""The size of an upload session's pieces: Dropbox wants a multiple of 4 MiB. A small one keeps memory use low."""

MEMBER_ROLES: Mapping[str, str] = {"viewer_no_comment": "", "viewer": "read", "editor": "write", "owner": ""}
"""The service's names for what members of a shared folder may do."""

EDITORS_MAY = frozenset({"write", "delete", "share"})
"""An editor adds, edits, deletes and shares files (help.dropbox.com, "set-file-folder-permissions"). An owner can
reserve invitations for itself (``AclUpdatePolicy``). Viewers never invite."""

# A refusal (409, some 403 and 404) is a path of tags, such as path/conflict/file: the last known one counts.
TAG_KINDS: Mapping[str, ErrorKind] = {
    "too_many_write_operations": ErrorKind.THROTTLED,
    "too_many_requests": ErrorKind.THROTTLED,
    "insufficient_space": ErrorKind.QUOTA,
    "insufficient_quota": ErrorKind.QUOTA,
    "access_denied": ErrorKind.AUTH,
    "email_not_verified": ErrorKind.AUTH,
    "no_permission": ErrorKind.AUTH,
    "no_write_permission": ErrorKind.AUTH,
    "shared_link_access_denied": ErrorKind.AUTH,
    "no_access": ErrorKind.AUTH,
    "not_a_member": ErrorKind.AUTH,
    "not_found": ErrorKind.NOT_FOUND,
    "invalid_id": ErrorKind.NOT_FOUND,
    "shared_link_not_found": ErrorKind.NOT_FOUND,
    "conflict": ErrorKind.CONFLICT,
    "incorrect_offset": ErrorKind.CONFLICT,
    "not_file": ErrorKind.CONFLICT,
    "not_folder": ErrorKind.CONFLICT,
    "shared_link_already_exists": ErrorKind.CONFLICT,
    "content_hash_mismatch": ErrorKind.CORRUPT,
    "internal_error": ErrorKind.SERVER,
    "other": ErrorKind.SERVER,
    "reset": ErrorKind.SERVER,
}

# A malformed token is answered by 400 and these words, not by 401.
_TOKEN_WORDS = ("access token", "authorization")


def kind_without_tags(status: int, text: str) -> ErrorKind:
    """Return the kind of error of an answer without tags. Here a 2xx cannot be read, which is the server's fault."""
    if status == 400 and any(word in text.lower() for word in _TOKEN_WORDS):
        return ErrorKind.AUTH
    return kind_of_status(status)


def kind_of_tags(tags: list[str]) -> ErrorKind:
    """Return what a refusal's path of tags means."""
    kinds = [TAG_KINDS[tag] for tag in tags if tag in TAG_KINDS]
    return kinds[-1] if kinds else ErrorKind.INVALID


def require_composed(verb: str, path: str, text: str) -> None:
    """Raise CloudError if names are not composed (NFC): Dropbox would store them composed, and not find them."""
    if not is_normalized("NFC", text):
        raise CloudError(ErrorKind.INVALID, verb, path, detail="a name is composed (NFC) here")


def open_dropbox_link(url: str, stranger: Stranger) -> bytes:
    """Return the file behind a shared link. With ``dl=1`` Dropbox sends the file instead of a page about it."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), "dl": "1"}
    return stranger.read(urlunsplit(parts._replace(query=urlencode(query))))
