"""Credentials: where they come from, and in which order.

What may live here: reading them. Which fields a provider needs is data that its driver declares
(``credential_sets``), so no provider is named here. A value never enters a message, a log or a ``repr``.

The order: an option (``?token_env=NAME``), the environment, the keyring, a file that only its owner can
read. The first source that has anything for the provider is the one that is used: a set that it leaves
incomplete is an error, and not completed from the next source.
"""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_cloudbench import drivers, extras, opening
from pytest_cloudbench.drivers.base import CredentialSet
from pytest_cloudbench.model import CredentialsError

__all__ = ["KEYRING_SERVICE", "Secrets", "credentials_path", "environment_name", "load"]

KEYRING_SERVICE = "pytest-cloudbench"

# A locked keyring asks its user for a password. A test run has no user: give up and go on.
_KEYRING_S = 5.0

_Lookup = Callable[[str], str | None]


class Secrets(dict[str, str]):
    """Field to value, without the values in its ``repr``."""

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self)})"

    __str__ = __repr__


def load(scheme: str, token_env: str | None = None) -> Mapping[str, str]:
    """The credentials of one provider; empty where its driver needs none.

    Args:
        scheme: the provider's driver.
        token_env: name of the environment variable that holds the token, from the provider's spec.

    Raises CredentialsError, which says in one line what to set.
    """
    sets: Sequence[CredentialSet] = getattr(drivers.driver_class(scheme), "credential_sets", ())
    if not sets:
        return Secrets()
    if token_env is not None:
        return _from_option(scheme, sets, token_env)
    for source, lookup in _sources(scheme):
        found = _collect(sets, lookup)
        if found:
            return _complete(scheme, sets, found, source)
    raise CredentialsError(f"{scheme}: no credentials found: {_what_to_set(scheme, sets)}")


def environment_name(scheme: str, field: str) -> str:
    """The environment variable of one field."""
    return f"CLOUDBENCH_{scheme}_{field}".upper().replace("-", "_")


def credentials_path() -> Path:
    """The file in the user's config folder: one TOML table per provider."""
    import platformdirs

    return platformdirs.user_config_path("pytest-cloudbench") / "credentials.toml"


def _sources(scheme: str) -> Iterator[tuple[str, _Lookup]]:
    """Where to look, in order; each is opened only when those before it had nothing."""
    yield "the environment", lambda field: os.environ.get(environment_name(scheme, field))
    yield "the keyring", _keyring(scheme)
    path = credentials_path()
    yield str(path), _file(scheme, path)


def _fields(sets: Sequence[CredentialSet]) -> list[str]:
    return list(dict.fromkeys(name for fields in sets for name in (*fields.required, *fields.optional)))


def _collect(sets: Sequence[CredentialSet], lookup: _Lookup) -> Secrets:
    values = {name: (lookup(name) or "").strip() for name in _fields(sets)}
    return Secrets({name: value for name, value in values.items() if value})


def _complete(scheme: str, sets: Sequence[CredentialSet], found: Secrets, source: str) -> Secrets:
    for fields in sets:
        if all(name in found for name in fields.required):
            names = (*fields.required, *fields.optional)
            return Secrets({name: found[name] for name in names if name in found})
    raise CredentialsError(
        f"{scheme}: {source} has {', '.join(found)} only, which is not enough: {_what_to_set(scheme, sets)}"
    )


def _what_to_set(scheme: str, sets: Sequence[CredentialSet]) -> str:
    ways = [" and ".join(environment_name(scheme, name) for name in fields.required) for fields in sets]
    first, absent = sets[0].required[0], extras.missing("keyring")
    ring = f" ({absent})" if absent else ""
    return (
        f"set {', or '.join(ways)}; or run 'keyring set {KEYRING_SERVICE} {scheme}.{first}'{ring}; "
        f'or write {first} = "..." below [{scheme}] in {credentials_path()} (mode 0600)'
    )


def _from_option(scheme: str, sets: Sequence[CredentialSet], token_env: str) -> Secrets:
    value = os.environ.get(token_env, "").strip()
    if not value:
        raise CredentialsError(f"{scheme}: token_env={token_env}: this environment variable is not set or empty")
    return Secrets({sets[0].required[0]: value})


def _keyring(scheme: str) -> _Lookup:
    """The keyring's answers, as far as there is a keyring and it answers at all."""
    dead = False

    def lookup(field: str) -> str | None:
        nonlocal dead
        if dead:
            return None
        answers: list[str | None] = []
        # A daemon thread, because nothing else bounds a backend that waits for its user.
        asking = threading.Thread(target=_ask_keyring, args=(f"{scheme}.{field}", answers), daemon=True)
        asking.start()
        asking.join(_KEYRING_S)
        dead = not answers
        return answers[0] if answers else None

    return lookup


def _ask_keyring(user: str, answers: list[str | None]) -> None:
    """Append the answer; append nothing where there is no keyring, or a broken one."""
    try:
        import keyring

        answers.append(keyring.get_password(KEYRING_SERVICE, user))
    except Exception:  # backends raise whatever their libraries do; the file is the fallback
        return


def _file(scheme: str, path: Path) -> _Lookup:
    try:
        with opening.regular_file(path, opening.MIB) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if os.name == "posix" and mode & 0o077:
                raise CredentialsError(f"{path}: other users may read it (mode {mode:04o}): run 'chmod 600 {path}'")
            document = tomllib.load(file)
    except FileNotFoundError:
        return lambda _field: None
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # Not chained: a TOML error can quote the line, and the line can hold a token.
        line = str(error).rpartition("(at ")[2].rstrip(")")
        raise CredentialsError(f"{path}: is not TOML ({line})") from None
    table = document.get(scheme, {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise CredentialsError(f"{path}: [{scheme}]: expected a table of texts")
    return table.get
