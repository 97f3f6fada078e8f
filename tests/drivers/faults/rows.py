"""The rows of the fault matrix, each of which points a driver at the faulty server.

To add a driver, add a row to ROWS. Its ``urls`` makes the endpoint's URLs from the server's URL. Nothing else is needed
if each operation reads an answer in JSON or XML. Otherwise the row names the exceptions, with the reason. A driver that
does not use HTTP is in WITHOUT_HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_cloudbench.model import Endpoint, ErrorKind

from .server import Answer

__all__ = ["EITHER", "JSON", "ROWS", "WITHOUT_HTTP", "Row"]

K = ErrorKind
EITHER = frozenset({K.NETWORK, K.SERVER})
"""Kinds for a broken answer: one library sees half an answer, another one without sense. Both are right."""
JSON = {"content-type": "application/json"}
XML = {"content-type": "application/xml"}
_EXPIRED = Answer(401, b'{"error": "expired, you said {echo}"}', JSON)


@dataclass(frozen=True)
class Row:
    """The row of one driver.

    Attributes:
        urls: makes the endpoint's URLs from the server's URL.
        secrets: credentials that no output may show.
        public: credentials that any output may show; ``{url}`` is the server's URL.
        spec: the spec after its scheme: a target and parameters without ``timeout_s``.
        api: the endpoint's API, where the driver speaks several.
        begins: headers of an answer that holds a file's content.
        expired: the service's answer to an expired token.
        unread: operations whose answer has no body, so that no body can be broken.
        raw: operations whose answer is raw content, so that any body is valid.
        silent: operations that send nothing.
        asks_why: operations that send another request to learn the cause of a status of 500.
        tells_wait: whether the driver reads Retry-After.
        follows: whether its library always follows redirects. Then no secret may go with them.
        is_plain: whether it speaks HTTP without TLS, so that no certificate can be wrong.
        kinds: the right kinds for this service where they differ from the table's, by the name of a fault, or by the
            names of a fault and an operation.
    """

    urls: Callable[[str], Mapping[str, str]]
    secrets: Mapping[str, str]
    public: Mapping[str, str] = field(default_factory=dict)
    spec: str = ""
    api: str = ""
    begins: Mapping[str, str] = field(default_factory=dict)
    expired: Answer = field(default=_EXPIRED)
    unread: frozenset[str] = frozenset()
    raw: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    asks_why: frozenset[str] = frozenset()
    tells_wait: bool = True
    is_plain: bool = False
    follows: bool = False
    kinds: Mapping[str, frozenset[ErrorKind]] = field(default_factory=dict)

    def endpoint(self, url: str, ca_file: str) -> Endpoint:
        """Return the endpoint of the service that the server pretends to be."""
        public = {name: value.replace("{url}", url) for name, value in self.public.items()}
        return Endpoint(self.urls(url), {**self.secrets, **public}, ca_file, api=self.api)


def _one(url: str) -> Mapping[str, str]:
    """Return the URLs of a service with one URL for everything."""
    return {"api": url}


WITHOUT_HTTP: Mapping[str, str] = {
    "folder": "the operating system's calls; see test_driver_folder.py",
    "opendal": "HTTP, by a library without a CA option; see test_driver_opendal.py",
    "raid": "its children's drivers; see tests/raid/test_failing_children.py",
    "rclone": "HTTP, but to a daemon of its own; see test_driver_rclone.py",
    "sftp": "SSH; see test_driver_sftp.py",
}
"""Drivers without HTTP: the protocol of each, and the file with the tests of its faults."""

_DROPBOX_FILE = {
    ".tag": "file", "name": "a", "id": "id:aaaaaaaaaaaaaaaaaaaaaa", "path_lower": "/a", "path_display": "/a",
    "rev": "0123456789abcdef0", "size": 4096, "client_modified": "2026-11-20T00:00:00Z",
    "server_modified": "2026-11-20T00:00:00Z",
}  # fmt: skip

_DROPBOX = Row(
    urls=lambda url: dict.fromkeys(("api", "content", "notify", "web"), url),
    secrets={"access_token": "sl.u.secret-of-the-matrix-4711"},
    begins={"dropbox-api-result": json.dumps(_DROPBOX_FILE)},
    expired=Answer(
        401, b'{"error_summary": "expired_access_token/{echo}", "error": {".tag": "expired_access_token"}}', JSON
    ),
)

_S3 = Row(
    urls=_one,
    spec=":bucket",
    secrets={"secret_access_key": "secret-key-of-the-matrix-4711", "session_token": "secret-session-of-the-matrix"},
    public={"access_key_id": "AKIDMATRIX"},
    begins={"etag": '"d41d8cd98f00b204e9800998ecf8427e"', "last-modified": "Fri, 20 Nov 2026 12:00:00 GMT"},
    expired=Answer(400, b"<Error><Code>ExpiredToken</Code><Message><![CDATA[expired: {echo}]]></Message></Error>", XML),
    raw=frozenset({"get"}),
    unread=frozenset({"stat"}),  # a HEAD
    kinds={
        # The SDK checks only the length of a file's content, and reports XML that ends early as a 500 of the service.
        "cut-short": EITHER,
        "reset-in-the-body": EITHER,
        # Its HTTP library fails on the SDK's own headers before the driver sees the answer. S3 has no 303.
        "303-to-another-host": frozenset({K.NETWORK}),
        "401-expired stat": frozenset({K.INVALID}),  # S3 answers with 400 and a code, and a HEAD has no code
    },
)

ROWS: Mapping[str, Row] = {
    "azure": Row(
        urls=_one,
        spec=":container",
        secrets={"account_key": "c2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTE="},
        public={"account": "us"},
        expired=Answer(403, b"<Error><Code>AuthenticationFailed</Code></Error>", XML),
        raw=frozenset({"put", "get", "delete", "copy"}),
        unread=frozenset({"stat"}),  # a HEAD
    ),
    "box": Row(
        urls=lambda url: dict.fromkeys(("api", "upload", "account"), url),
        secrets={"access_token": "secret-token-of-the-matrix-4711"},
        expired=Answer(
            401, b"", {"www-authenticate": 'Bearer realm="Service", error="invalid_token", error_description="{echo}"'}
        ),
    ),
    "dropbox": _DROPBOX,
    "dropbox+fast": _DROPBOX,
    "gcs": Row(
        urls=_one,
        spec=":bucket",
        secrets={"access_token": "ya29.secret-of-the-matrix-4711"},
        expired=Answer(401, b'{"error": {"code": 401, "message": "Invalid Credentials, {echo}"}}', JSON),
        raw=frozenset({"get", "delete"}),
    ),
    "gdrive": Row(
        urls=_one,
        secrets={"access_token": "ya29.secret-of-the-matrix-4711"},
        expired=Answer(
            401,
            b'{"error": {"code": 401, "message": "Invalid Credentials, {echo}", "errors": [{"reason": "authError"}]}}',
            JSON,
        ),
    ),
    "mega": Row(
        urls=_one,
        secrets={"password": "secret-word-of-the-matrix-4711"},
        public={"email": "someone@example.com"},
        expired=Answer(200, b"-15", JSON),  # names no session: the first answer to each driver is that to a login
    ),
    "onedrive": Row(
        urls=_one,
        secrets={"access_token": "EwB-secret-of-the-matrix-4711"},
        expired=Answer(
            401,
            b'{"error": {"code": "InvalidAuthenticationToken", "message": "Lifetime validation failed: {echo}"}}',
            JSON,
        ),
        raw=frozenset({"delete"}),  # the answer is only a status
        unread=frozenset({"get"}),  # the answer redirects to the content, and has no body
    ),
    "s3": _S3,
    "s3+fast": replace(
        _S3,
        secrets={"secret_access_key": "secret-key-of-the-matrix-4711"},
        raw=frozenset({"get", "list", "delete", "copy"}),  # the client takes any page for an empty list
        unread=frozenset({"stat", "put"}),
        follows=True,
        tells_wait=False,
        kinds={f"{status}-to-another-host": EITHER for status in (301, 302, 303, 307, 308)}
        | {"307-to-plain-http": EITHER, "401-expired stat": frozenset({K.INVALID})},
    ),
    "swift": Row(
        urls=_one,
        spec=":container",
        secrets={"key": "secret-key-of-the-matrix-4711"},
        public={"user": "us:me", "auth_url": "{url}/auth/v1.0"},
    ),
    "tahoe": Row(
        urls=_one,
        secrets={"cap": "URI:DIR2:secretcapofthematrix4711:secretcapofthematrix4711"},
        raw=frozenset({"put", "get", "delete", "mkdir"}),  # most answers are only a status
        begins={"accept-ranges": "bytes"},
    ),
    "webdav": Row(
        urls=_one,
        secrets={"password": "secret-word-of-the-matrix-4711"},
        public={"user": "someone"},
        raw=frozenset({"put", "get", "delete", "mkdir", "copy", "move"}),  # most answers are only a status
        asks_why=frozenset({"put", "copy", "move"}),  # some servers answer 500 below a folder that does not exist
    ),
}
"""The row of each scheme, in alphabetical order."""
