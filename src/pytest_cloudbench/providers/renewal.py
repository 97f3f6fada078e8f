"""Credentials as drivers take them: a refresh token that works only once is used first, and its successor is stored.

What may live here: when a token is renewed, and that only one process at a time does it. Where credentials are is in
``credentials``; how a token is asked for is in ``login``. Fifty agents import this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pytest_cloudbench import drivers
from pytest_cloudbench.model import CredentialsError
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.providers.credentials import Secrets

_LEAST_LEFT_S = 45 * 60.0
"""A token that lasts this long is used again, so that processes that start together share it."""


def load(
    scheme: str, token_env: str | None = None, account: int = 1, said: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Returns the credentials of one provider; arguments as of ``credentials.load``.

    What ``cloudbench login`` stored with a refresh token that works once becomes an access token that lasts for at
    least 45 minutes, if the provider's last that long. Raises CredentialsError.
    """
    found = credentials.load(scheme, token_env, account, said)
    if not _is_single_use(scheme, found):
        return found
    with _alone():
        found = credentials.load(scheme, token_env, account)  # another process may have renewed it meanwhile
        if _is_single_use(scheme, found):
            if _left_s(found) < _LEAST_LEFT_S:
                found = _renewed(scheme, account, found)
            return Secrets({"access_token": found["renewed_token"]})
    return found


def _is_single_use(scheme: str, found: Mapping[str, str]) -> bool:
    sets = getattr(drivers.driver_class(scheme), "credential_sets", ())
    return any(each.single_use and all(name in found for name in each.required) for each in sets)


def _left_s(found: Mapping[str, str]) -> float:
    with suppress(KeyError, ValueError):
        if found["renewed_token"]:
            return float(found["renewed_until_s"]) - time.time()
    return 0.0


def _renewed(scheme: str, account: int, found: Mapping[str, str]) -> Mapping[str, str]:
    """Ask for the next tokens and store them at once: the former refresh token no longer works."""
    from pytest_cloudbench.providers.login import Application, renewed

    driver: Any = drivers.driver_class(scheme)
    name = credentials.account_name(scheme, account)
    app = Application(driver.oauth, found["client_id"], found["client_secret"])
    try:
        tokens, lasts_s = renewed(app, found["refresh_token"])
    except CredentialsError as error:
        raise CredentialsError(
            f"{name}: {str(error).removeprefix('login: ')}; if this continues, run 'cloudbench login {name}'"
        ) from error
    now = {
        **found, "refresh_token": tokens.get("refresh_token", found["refresh_token"]),
        "renewed_token": tokens["access_token"], "renewed_until_s": f"{time.time() + lasts_s:.0f}",
    }  # fmt: skip
    credentials.store(name, now)
    return now


@contextmanager
def _alone() -> Iterator[None]:
    """Keeps other processes out. Not on Windows: there, two sessions must not start at the same moment."""
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
