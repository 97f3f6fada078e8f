"""The keys of a profile in the user's own AWS files, renewed as long as a driver of S3 uses them.

What may live here: reading a profile with the official SDK, and handing its keys to the SDK's client.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any

from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.sdk import OwnError
from pytest_cloudbench.drivers.surroundings import TABLE, closed
from pytest_cloudbench.model import CredentialsError, ErrorKind
from pytest_cloudbench.support import redact

_EARLY_S = 60
"""Keys that end sooner are renewed before they sign another request."""


class ProfileKeys:
    """The keys of a profile, in place of the SDK's own credentials and of what finds them.

    Keys of a role, of a single sign-on or of a program end after a while. They are renewed once for all threads, by the
    request that notices it, and with the same variables, proxies and certificates as the first ones.

    Args:
        name: the profile's name.

    Raises CredentialsError.
    """

    method = "profile"

    def __init__(self, name: str) -> None:
        self._name, self._lock, self._egress = name, Lock(), egress_of(None)
        self._source: Any = None
        self._keys: Any = None
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        from botocore.session import Session

        try:
            # A profile may name a role, whose keys another Amazon service gives.
            with self._egress.as_environment():
                session = Session(profile=self._name)
                if os.path.isdir(self._egress.trusted):
                    session.set_config_variable("ca_bundle", self._egress.trusted_file())
                self._source = session.get_credentials()
                if self._source is not None:
                    self._keys = self._source.get_frozen_credentials()
        except _failures() as error:
            raise CredentialsError(f"s3: profile {self._name}: {_in_one_line(error)}") from error
        if self._keys is None or not self._keys.access_key or not self._keys.secret_key:
            raise CredentialsError(f"s3: profile {self._name}: it has no keys; see ~/.aws/credentials")
        self._hide_keys()

    def close(self) -> None:
        """Remove what the renewal needed."""
        self._egress.close()

    def load_credentials(self) -> ProfileKeys:
        """Return these keys to an SDK that asks for credentials."""
        return self

    def get_frozen_credentials(self) -> Any:
        """Return the keys that sign the next request. Raises OwnError, or an error of the SDK, if they have ended."""
        if self._end_soon():
            with self._lock:
                if self._end_soon():  # another thread may have renewed them
                    self._renew()
        return self._keys

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that returns one part of the keys."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def _end_soon(self) -> bool:
        refresh_needed = getattr(self._source, "refresh_needed", None)  # keys that are written down do not end
        return refresh_needed is not None and bool(refresh_needed(_EARLY_S))

    def _renew(self) -> None:
        from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

        try:
            with closed(TABLE["s3"]), self._egress.as_environment():
                self._keys = self._source.get_frozen_credentials()
        except (ClientError, ConnectionError, HTTPClientError):
            raise  # these mean the same as for any other request
        except _failures() as error:
            raise OwnError(ErrorKind.AUTH, f"profile {self._name}: {_in_one_line(error)}") from error
        self._hide_keys()

    def _hide_keys(self) -> None:
        redact.learn([self._keys.secret_key, *([self._keys.token] if self._keys.token else [])])


def _failures() -> tuple[type[Exception], ...]:
    """Return what the SDK raises where a profile gives no keys.

    A profile's own program may be missing, or print something else than keys, which the SDK does not foresee.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError, OSError, ValueError, AttributeError, RuntimeError


def _in_one_line(error: Exception) -> str:
    return redact.clean(" ".join(str(error).split()))
