"""Google's credentials: where its own programs keep them, and the renewal of their tokens by google-auth.

What may live here: reading those files, and what the drivers of its services have in common with google-auth. The
places are Google's (application default credentials), in Google's order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from pytest_cloudbench.model import CredentialsError
from pytest_cloudbench.support import opening, redact

_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_FILE = "application_default_credentials.json"
OAUTH_FIELDS = ("refresh_token", "client_id", "client_secret")
"""The fields of a user's own login, which Google and the drivers name alike."""


class TokenAnswer(NamedTuple):
    """The answer to a request for a token, as google-auth reads it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def renewed_once(credentials: Any) -> Callable[[Callable[..., TokenAnswer]], str]:
    """Return a function that returns a valid token of google-auth's credentials, renewed once for all threads.

    It takes the function by which google-auth sends a request. That raises an error of the driver's own for a refusal,
    because google-auth would repeat the request. Each new token is hidden in messages.
    """
    lock = Lock()

    def valid_token(send: Callable[..., TokenAnswer]) -> str:
        if not credentials.valid:
            with lock:
                if not credentials.valid:  # another thread may have renewed it
                    credentials.refresh(send)
                    redact.learn([str(credentials.token)])
        return str(credentials.token)

    return valid_token


def google_credentials() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each place that has credentials, and their values by the drivers' field names. Raises CredentialsError."""
    if path_text := os.environ.get(_VARIABLE):
        yield f"{_VARIABLE} ({path_text})", _fields(Path(path_text))
    path = _gcloud_folder() / _FILE
    if path.is_file():
        yield str(path), _fields(path)


def _gcloud_folder() -> Path:
    if folder_text := os.environ.get("CLOUDSDK_CONFIG"):
        return Path(folder_text)
    base_folder = os.environ.get("APPDATA") if os.name == "nt" else None
    return Path(base_folder or Path.home() / ".config") / "gcloud"


def _fields(path: Path) -> Mapping[str, str]:
    """Return the credentials in a file. Raises CredentialsError, which quotes nothing of the file."""
    try:
        account = json.loads(opening.read_file(path))
        kind = str(account["type"])
        if kind == "service_account":
            return {"service_account_file": str(path)}
        if kind == "authorized_user":
            fields = {name: str(account[name]) for name in OAUTH_FIELDS}
            redact.learn([fields["refresh_token"], fields["client_secret"]])
            return fields
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CredentialsError(f"{path}: not a file of Google credentials as JSON") from None
    expected = "expected authorized_user or service_account"
    raise CredentialsError(f"{path}: credentials of type {redact.clean(kind)[:40]!r} cannot be used here; {expected}")
