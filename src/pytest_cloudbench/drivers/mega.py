"""Driver for MEGA with async-mega-py, an unofficial SDK (MEGA's own is C++).

What may live here: everything that is specific to MEGA as a client, in this order: imports, capabilities, error table,
connect, required verbs, optional verbs. ``_mega_account`` has the requests, ``_mega_tree`` paths over handles, and
``_mega_loop`` the event loop.

What the SDK does on its own, and how this driver handles it:

- It repeats a request up to 10 times after EAGAIN, and allows 100 requests a minute: both are off. aiohttp repeats a
  download whose kept-alive connection was closed, and follows redirects: off.
- It uploads from a file and downloads into one: the driver feeds and reads the functions below, so content streams in
  the chunks of MEGA's MAC (128 KiB to 1 MiB), and no file is written.
- It reads the whole account again after each change: see ``_mega_account``.

The client encrypts and computes MACs: that is part of each operation, as it is for an application. The first operation
also includes the login, unless ``prepare`` came before: a derived key, the session, and with today's MEGA a proof of
work.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pytest_cloudbench.drivers._mega_account import API_URL, MegaAccount
from pytest_cloudbench.drivers._mega_loop import LoopThread, RefusedAnswer
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    check_params,
    kind_of_status,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.sdk import UNREADABLE, CloudErrors, Meaning, OwnError, library_versions, network_failure
from pytest_cloudbench.drivers.stranger import Stranger
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    Verb,
)

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest=None,  # the server sees ciphertext; the MAC, of the content under the file's own key, is checked by get
    verbs=frozenset(Verb),
    conflicts=frozenset(Conflict) - {Conflict.SHARE_AGAIN},  # refused here: MEGA keeps two nodes of one name
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    space=True,
    # A put into a prepared folder: where to send, the content, the node. Other operations first ask what has changed.
    requests={
        Verb.PUT: 3, Verb.GET: 3, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 2, Verb.COPY: 2, Verb.MOVE: 2,
        Verb.SHARE: 2, Verb.REVOKE: 2,
    },
    via="async-mega-py on aiohttp; retries and its limit of 100 requests a minute off; encrypts in the client; "
    "its functions for files are fed without files",
)  # fmt: skip


# --- error table ----------------------------------------------------------------------------------

_CODE_KINDS: Mapping[int, ErrorKind] = {
    -1: ErrorKind.SERVER,  # EINTERNAL
    -2: ErrorKind.INVALID,  # EARGS
    -3: ErrorKind.THROTTLED,  # EAGAIN: congestion, no data was altered
    -4: ErrorKind.THROTTLED,  # ERATELIMIT
    -5: ErrorKind.SERVER,  # EFAILED
    -6: ErrorKind.THROTTLED,  # ETOOMANY
    -7: ErrorKind.INVALID,  # ERANGE
    -8: ErrorKind.SERVER,  # EEXPIRED: an address that was given a moment ago
    -9: ErrorKind.NOT_FOUND,  # ENOENT
    -10: ErrorKind.INVALID,  # ECIRCULAR
    -11: ErrorKind.AUTH,  # EACCESS
    -12: ErrorKind.CONFLICT,  # EEXIST
    -13: ErrorKind.SERVER,  # EINCOMPLETE
    -14: ErrorKind.CORRUPT,  # EKEY
    -15: ErrorKind.AUTH,  # ESID
    -16: ErrorKind.AUTH,  # EBLOCKED
    -17: ErrorKind.QUOTA,  # EOVERQUOTA
    -18: ErrorKind.THROTTLED,  # ETEMPUNAVAIL
    -19: ErrorKind.THROTTLED,  # ETOOMANYCONNECTIONS
    -24: ErrorKind.QUOTA,  # EGOINGOVERQUOTA
    -26: ErrorKind.AUTH,  # EMFAREQUIRED
    -27: ErrorKind.AUTH,  # EMASTERONLY
    -28: ErrorKind.AUTH,  # EBUSINESSPASTDUE
    -29: ErrorKind.QUOTA,  # EPAYWALL
}

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    402: ErrorKind.AUTH,
    509: ErrorKind.THROTTLED,  # transfer quota used up; X-MEGA-Time-Left says for how long
}


# --- connect --------------------------------------------------------------------------------------


class MegaDriver:
    """One login, one tree and one pool of connections, in one event loop that all threads share."""

    imports = ("aiohttp", "mega.api", "mega.auth", "mega.core", "mega.upload", "mega.vault")
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    clock_url: ClassVar[str] = f"{API_URL}/cs"
    no_cassette: ClassVar[str] = "its client draws new keys for each file, so no request is sent twice"
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("email", "password"), public=("email",), free=("password",)),
    )

    def __init__(self, endpoint: Endpoint | None, email: str, password: str, timeout_s: float) -> None:
        self._account = MegaAccount(endpoint, email, password, timeout_s)
        self._loop = LoopThread()

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> MegaDriver:
        """Return the driver for ``mega``. Nothing is sent before the first operation."""
        check_params(spec, {"timeout_s"}, no_target="the account's cloud drive is used")
        fields = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        return cls(endpoint, secrets["email"], secrets["password"], timeout_of(spec))

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        return {
            **library_versions(("async-mega-py", "aiohttp", "pycryptodome", "openssl")),
            "mega.retries": "off",
            "mega.rate_limiter": "off",
            **self._account.egress.remarks,
        }

    def close(self) -> None:
        """Close all connections, and end the event loop."""
        self._loop.close(self._account.close)

    def requests(self) -> int:
        """Return how many requests this thread has sent so far."""
        return self._loop.requests()

    def prepare(self, folder: str) -> None:
        """Log in, and look up a folder, as an application does once."""
        with self._cloud_errors("prepare", folder):
            self._loop.run(self._account.prepare(folder))

    @contextmanager
    def _cloud_errors(self, verb: str, path: str) -> Iterator[MegaAccount]:
        """Yield the account, and raise every error as CloudError."""
        with CloudErrors(verb, path, self._explain_error):
            if not path.startswith("/") and verb != "revoke":
                raise OwnError(ErrorKind.INVALID, "expected /NAME/...")
            if "\0" in path or {".", ".."} & set(path.split("/")):
                raise OwnError(ErrorKind.INVALID, "a name cannot be '.' or '..', or contain NUL")
            yield self._account

    def _explain_error(self, error: Exception) -> Meaning | None:
        import aiohttp
        from mega.errors import RequestError

        if isinstance(error, RefusedAnswer):
            return Meaning(kind_of_status(error.status, _STATUS_KINDS), str(error), error.wait_s)
        if isinstance(error, RequestError):
            kind = ErrorKind.AUTH if error.code is None else _CODE_KINDS.get(error.code, ErrorKind.SERVER)
            return Meaning(kind, f"{error.code} {error}")
        if isinstance(error, aiohttp.InvalidURL):
            return Meaning(ErrorKind.SERVER, "the answer has an address that cannot be used")
        if isinstance(error, aiohttp.ContentTypeError):
            return Meaning(ErrorKind.SERVER, f"{error.status} the answer is no JSON")
        if isinstance(error, RuntimeError) and str(error) == "Mismatched mac":
            return Meaning(ErrorKind.CORRUPT, "the content does not have the MAC of its key")
        if isinstance(error, (aiohttp.ClientError, asyncio.TimeoutError, asyncio.IncompleteReadError, OSError)):
            return network_failure(error)
        if isinstance(error, (ValueError, KeyError, TypeError, LookupError, AttributeError, RuntimeError)):
            return UNREADABLE
        return None

    def _entry_of_node(self, path: str, node: Any) -> Entry:
        if not node.is_file:
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=int(node.size), revision=node.id)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload in chunks, then add a node, then remove the one that had the path before."""
        with self._cloud_errors("put", path) as account:
            return self._entry_of_node(path, self._loop.run(account.put(path, content)))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes chunk by chunk, the last chunk only after the MAC of all was checked."""
        with self._cloud_errors("get", path) as account:
            if offset:
                raise OwnError(ErrorKind.INVALID, "the SDK reads files from their beginning only")
            pieces = account.read_pieces(path)
            try:
                while (piece := self._loop.run(_next_piece(pieces))) is not None:
                    yield piece
            finally:
                if not self._loop.is_closed:  # otherwise the download ended with the loop
                    self._loop.run(_close_pieces(pieces))

    def stat(self, path: str) -> Entry:
        """Return what MEGA knows about one path."""
        with self._cloud_errors("stat", path) as account:
            return self._entry_of_node(path, self._loop.run(account.find_node(path)))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, from the tree that the client keeps."""
        with self._cloud_errors("list", folder) as account:
            nodes = self._loop.run(account.descendants(folder))
        for path, node in nodes:
            yield self._entry_of_node(path, node)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents, for good."""
        with self._cloud_errors("delete", path) as account:
            if not path.strip("/"):
                raise OwnError(ErrorKind.INVALID, "the root cannot be deleted")
            self._loop.run(account.delete(path))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents. No error if it exists."""
        with self._cloud_errors("mkdir", path) as account:
            self._loop.run(account.mkdir(path))

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of the public link to a file, with the key that decrypts it."""
        with self._cloud_errors("share", path) as account:
            return self._loop.run(account.share(path))

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        with self._cloud_errors("revoke", url) as account:
            self._loop.run(account.revoke(url))

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link gives to a person without an account."""
        return open_mega_link(url, stranger)

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder. An existing target is a conflict."""
        with self._cloud_errors("copy", source) as account:
            return self._entry_of_node(target, self._loop.run(account.copy(source, target)))

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder. An existing target is a conflict."""
        with self._cloud_errors("move", source) as account:
            return self._entry_of_node(target, self._loop.run(account.move(source, target)))

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        with self._cloud_errors("space", "/") as account:
            return self._loop.run(account.space())


_NO_LINK = (b"-9", b"-16")
"""MEGA's numbers for a link that does not exist, and for one whose content was taken down."""


def open_mega_link(url: str, stranger: Stranger) -> bytes:
    """Return the file behind a public link, decrypted by the key in the link. Raises CloudError."""
    address, _, key_text = url.partition("#")
    handle = address.rstrip("/").rpartition("/")[2]
    command = json.dumps([{"a": "g", "g": 1, "ssl": 2, "p": handle}]).encode()
    _, body = stranger.send(f"{API_URL}/cs?id=0", command, {"content-type": "application/json"})
    try:
        answer = json.loads(body)[0]
        content_url, key = str(answer["g"]), base64.urlsafe_b64decode(key_text + "=" * (-len(key_text) % 4))
    except (ValueError, RecursionError, TypeError, LookupError) as error:  # a number in place of an answer is a refusal
        kind = ErrorKind.NOT_FOUND if body.strip(b"[] ") in _NO_LINK else ErrorKind.SERVER
        raise CloudError(kind, "open", url, detail=f"MEGA answers {body[:80]!r}") from error
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    file_key = bytes(left ^ right for left, right in zip(key[:16], key[16:32], strict=True))
    cipher = Cipher(algorithms.AES(file_key), modes.CTR(key[16:24] + bytes(8))).decryptor()
    return cipher.update(stranger.read(content_url)) + cipher.finalize()


async def _next_piece(pieces: Any) -> bytes | None:
    return await anext(pieces, None)


async def _close_pieces(pieces: Any) -> None:
    await pieces.aclose()
