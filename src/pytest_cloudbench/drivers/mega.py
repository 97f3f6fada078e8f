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
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, ClassVar

from pytest_cloudbench.drivers._mega_account import API_URL, MegaAccount, Unfit
from pytest_cloudbench.drivers._mega_loop import LoopThread, RefusedAnswer
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    check_params,
    detail_of,
    seconds_of,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.model import (
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

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
_ENDED_SESSION = -15

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    401: ErrorKind.AUTH,
    402: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    429: ErrorKind.THROTTLED,
    509: ErrorKind.THROTTLED,  # transfer quota used up; X-MEGA-Time-Left says for how long
}


def _kind_of_status(status: int) -> ErrorKind:
    return _STATUS_KINDS.get(status, ErrorKind.INVALID if 400 <= status < 500 else ErrorKind.SERVER)


# --- connect --------------------------------------------------------------------------------------


class MegaDriver:
    """One login, one tree and one pool of connections, in one event loop that all threads share."""

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
        if spec.target:
            raise SpecError(f"provider {spec.text!r}: nothing may follow 'mega:'; the account's cloud drive is used")
        check_params(spec, {"timeout_s"})
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        return cls(endpoint, secrets["email"], secrets["password"], timeout_of(spec))

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        names = ("async-mega-py", "aiohttp", "pycryptodome")
        return {name: version(name) for name in names} | {
            "openssl": ssl.OPENSSL_VERSION,
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
        with self._calling("prepare", folder):
            self._loop.run(self._account.prepare(folder))

    @contextmanager
    def _calling(self, operation: str, path: str) -> Iterator[MegaAccount]:
        """Yield the account; turns every error into CloudError."""
        try:
            if not path.startswith("/") and operation != "revoke":
                raise Unfit(ErrorKind.INVALID, "expected /NAME/...")
            if "\0" in path or {".", ".."} & set(path.split("/")):
                raise Unfit(ErrorKind.INVALID, "a name cannot be '.' or '..', or contain NUL")
            yield self._account
        except (GeneratorExit, CloudError):
            raise
        except Exception as error:
            kind, detail, wait = self._why(operation, error)
            redact.clean_error(error)
            detail = detail_of(detail, path)
            raise CloudError(kind, operation, path, retry_after_s=wait, detail=detail) from error

    def _why(self, operation: str, error: Exception) -> tuple[ErrorKind, str, float | None]:
        import aiohttp
        from mega.errors import RequestError

        if isinstance(error, Unfit):
            return error.kind, str(error), None
        if isinstance(error, RefusedAnswer):
            return _kind_of_status(error.status), str(error), seconds_of(error.wait)
        if isinstance(error, RequestError):
            if error.code == _ENDED_SESSION:
                self._loop.run(self._account.forget())
            kind = ErrorKind.AUTH if error.code is None else _CODE_KINDS.get(error.code, ErrorKind.SERVER)
            return kind, f"{error.code} {error}", None
        if isinstance(error, aiohttp.InvalidURL):
            return ErrorKind.SERVER, "the answer has an address that cannot be used", None
        if isinstance(error, aiohttp.ContentTypeError):
            return ErrorKind.SERVER, f"{error.status} the answer is no JSON", None
        if isinstance(error, RuntimeError) and str(error) == "Mismatched mac":
            return ErrorKind.CORRUPT, "the content does not have the MAC of its key", None
        if isinstance(error, (aiohttp.ClientError, asyncio.TimeoutError, asyncio.IncompleteReadError, OSError)):
            return ErrorKind.NETWORK, str(error) or type(error).__name__, None
        if isinstance(error, (ValueError, KeyError, TypeError, LookupError, AttributeError, RuntimeError)):
            return ErrorKind.SERVER, "the answer cannot be read", None
        raise error  # a mistake in this file, and not the provider's

    def _entry(self, path: str, node: Any) -> Entry:
        if not node.is_file:
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=int(node.size), revision=node.id)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload in chunks, then add a node, then remove the one that had the path before."""
        with self._calling("put", path) as account:
            return self._entry(path, self._loop.run(account.put(path, content)))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes chunk by chunk, the last one only after the MAC of all has proved right."""
        with self._calling("get", path) as account:
            if offset:
                raise Unfit(ErrorKind.INVALID, "the SDK reads files from their beginning only")
            pieces = account.pieces(path)
            try:
                while (piece := self._loop.run(_next(pieces))) is not None:
                    yield piece
            finally:
                if not self._loop.is_closed:  # otherwise the download ended with the loop
                    self._loop.run(_ended(pieces))

    def stat(self, path: str) -> Entry:
        """Return what MEGA knows about one path."""
        with self._calling("stat", path) as account:
            return self._entry(path, self._loop.run(account.node(path)))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield everything below ``folder``, from the tree that the client keeps."""
        with self._calling("list", folder) as account:
            found = self._loop.run(account.below(folder))
        for path, node in found:
            yield self._entry(path, node)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents, for good."""
        with self._calling("delete", path) as account:
            if not path.strip("/"):
                raise Unfit(ErrorKind.INVALID, "the root cannot be deleted")
            self._loop.run(account.delete(path))

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents; no error if it exists."""
        with self._calling("mkdir", path) as account:
            self._loop.run(account.mkdir(path))

    # --- optional verbs ---------------------------------------------------------------------------

    def share(self, path: str) -> str:
        """Return the URL of the public link to a file, with the key that decrypts it."""
        with self._calling("share", path) as account:
            return self._loop.run(account.share(path))

    def revoke(self, url: str) -> None:
        """Make a link from ``share`` unusable."""
        with self._calling("revoke", url) as account:
            self._loop.run(account.revoke(url))

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder; an existing target is a conflict."""
        with self._calling("copy", source) as account:
            return self._entry(target, self._loop.run(account.copy(source, target)))

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder; an existing target is a conflict."""
        with self._calling("move", source) as account:
            return self._entry(target, self._loop.run(account.move(source, target)))

    def space(self) -> tuple[int, int]:
        """Return the bytes used, and the bytes that the account may hold."""
        with self._calling("space", "/") as account:
            return self._loop.run(account.space())


async def _next(pieces: Any) -> bytes | None:
    return await anext(pieces, None)


async def _ended(pieces: Any) -> None:
    await pieces.aclose()
