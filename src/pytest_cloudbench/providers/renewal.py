"""Credentials as drivers take them: a refresh token that works only once is exchanged, and its successor is stored.

Only one process at a time renews a token. An agent does so during a run, too, and the others find what it has stored.
Fifty agents import this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from pytest_cloudbench.model import CredentialsError
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.providers.credentials import ProviderAccount, Secrets

_LEAST_LEFT_S = 45 * 60.0
"""A token that still lasts this long is used again, so that processes that start together share it."""


class RenewedToken(Secrets):
    """Credentials that consist of an access token, which ends.

    Args:
        access_token: the token.
        until_s: the time of its end, in seconds since 1970.
    """

    def __init__(self, access_token: str, until_s: float) -> None:
        super().__init__(access_token=access_token)
        self._until_s = until_s

    @property
    def remaining_s(self) -> float:
        """The time until the token ends."""
        return self._until_s - time.time()


def load_usable(account: ProviderAccount) -> Mapping[str, str]:
    """Return the credentials of an account, as its driver takes them.

    A stored refresh token that works only once becomes an access token that lasts for at least 45 minutes, if the
    provider's tokens last that long. Raises CredentialsError.
    """
    stored = credentials.load(account)
    if not _is_single_use(account, stored):
        return stored
    with _lock():
        stored = credentials.load(account)  # another process may have renewed it meanwhile
        if _is_single_use(account, stored):
            if _remaining_s(stored) < _LEAST_LEFT_S:
                stored = _renew(account, stored)
            return RenewedToken(stored["renewed_token"], float(stored["renewed_until_s"]))
    return stored


def _is_single_use(account: ProviderAccount, stored: Mapping[str, str]) -> bool:
    return any(fields.single_use and all(name in stored for name in fields.required) for fields in account.sets)


def _remaining_s(stored: Mapping[str, str]) -> float:
    """Return how long the stored access token still lasts."""
    with suppress(KeyError, ValueError):
        if stored["renewed_token"]:
            return float(stored["renewed_until_s"]) - time.time()
    return 0.0


def _renew(account: ProviderAccount, stored: Mapping[str, str]) -> Mapping[str, str]:
    """Ask for the next tokens and store them at once, because the former refresh token no longer works."""
    from pytest_cloudbench.providers.login import Application, request_tokens

    name, driver = account.name, cast("Any", account.bound.driver)
    app = Application(driver.oauth, stored["client_id"], stored["client_secret"])
    try:
        tokens, lifetime_s = request_tokens(app, stored["refresh_token"])
    except CredentialsError as error:
        raise CredentialsError(
            f"{name}: {str(error).removeprefix('login: ')}; if this continues, run 'cloudbench login {name}'"
        ) from error
    renewed = {
        **stored, "refresh_token": tokens.get("refresh_token", stored["refresh_token"]),
        "renewed_token": tokens["access_token"], "renewed_until_s": f"{time.time() + lifetime_s:.0f}",
    }  # fmt: skip
    credentials.store(account, renewed)
    return renewed


@contextmanager
def _lock() -> Iterator[None]:
    """Keep other processes out, except on Windows, where two of them must not renew a token at the same moment."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = credentials.credentials_path().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
