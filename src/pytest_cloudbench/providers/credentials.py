"""Credentials: where they come from, and in which order.

What may live here: reading, storing and forgetting credentials. Each driver declares the fields that it needs
(``credential_sets``), so no provider is named here. A value never enters a message, a log or a ``repr``.

The order: an option (``?token_env=NAME``), the environment, the keyring, a file that only its owner can
read, and then where the provider's own programs keep theirs, if the driver knows (``elsewhere``). The first source that
has anything for the provider is used. If its set is incomplete, that is an error; the next source does not complete it.
"""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import CredentialSet
from pytest_cloudbench.model import CredentialsError
from pytest_cloudbench.support import extras, opening

KEYRING_SERVICE = "pytest-cloudbench"

# A locked keyring asks its user for a password. A test run has no user: give up and go on.
_KEYRING_S = 5.0

_Lookup = Callable[[str], str | None]


class Secrets(dict[str, str]):
    """A mapping of fields to values; its ``repr`` hides the values."""

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self)})"

    __str__ = __repr__


def load(
    scheme: str, token_env: str | None = None, account: int = 1, said: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Returns the credentials of one provider; empty if its driver needs none, or can do without and none were found.

    Args:
        scheme: the provider's driver.
        token_env: name of the environment variable that holds the token, from the provider's spec.
        account: the number of the account, from 1. The second account's credentials are those of ``SCHEME-2``.
        said: fields that the provider's spec itself gives, such as an account's name; they are not looked up.

    Raises CredentialsError, which says in one line what to set.
    """
    sets: Sequence[CredentialSet] = getattr(drivers.driver_class(scheme), "credential_sets", ())
    if not sets:
        return Secrets()
    if token_env is not None:
        return _from_option(scheme, sets, token_env)
    name = account_name(scheme, account)
    for source, usable, lookup in _sources(name, sets):
        found = _collect(usable, lookup)
        if found:
            return _complete(name, usable, found, said or {}, source)
    if any(not each.required for each in sets):
        return Secrets()
    raise CredentialsError(f"{name}: no credentials found: {_what_to_set(name, sets)}")


def account_name(scheme: str, account: int = 1) -> str:
    """Returns the name under which an account's credentials are: the scheme, or ``SCHEME-2`` for the second."""
    owner = drivers.credentials_of(scheme)
    return owner if account == 1 else f"{owner}-{account}"


def places(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each source that has credentials of a provider, first the one that is used, and the fields that it has.

    ``name`` is the scheme, or ``SCHEME-2`` for a second account. Raises CredentialsError.
    """
    for source, usable, lookup in _sources(name, _sets_of(name)):
        if found := _collect(usable, lookup):
            yield source, list(found)


def known(name: str, fields: Sequence[str]) -> tuple[str, Secrets]:
    """Returns the first source that has the first of these fields, and what it has of them all; empty if none has it.

    ``name`` is as for ``places``. Raises CredentialsError.
    """
    for source, _, lookup in _sources(name, _sets_of(name)):
        found = Secrets({field: value for field in fields if (value := (lookup(field) or "").strip())})
        if fields[0] in found:
            return source, found
    return "", Secrets()


def store(name: str, values: Mapping[str, str]) -> str:
    """Store credentials in the keyring; where there is none, in a file that only its owner can read.

    What was stored under this name before is replaced at once: whoever reads meanwhile finds the former or the new
    ones. Returns where they are. Raises CredentialsError.
    """
    path = credentials_path()
    if _answers(lambda ring: [ring.set_password(KEYRING_SERVICE, f"{name}.{key}", values[key]) for key in values]):
        _forget_in_keyring(name, [key for key in _fields(_sets_of(name)) if key not in values])
        _forget_in_file(name, path)
        return "the keyring"
    _forget_in_keyring(name, _fields(_sets_of(name)))
    _write(path, {**_tables(path), name: dict(values)})
    return str(path)


def forget(name: str) -> list[str]:
    """Remove a provider's stored credentials. Returns the places that had any. Raises CredentialsError."""
    path = credentials_path()
    left = ["the keyring"] if _forget_in_keyring(name, _fields(_sets_of(name))) else []
    return [*left, str(path)] if _forget_in_file(name, path) else left


def _forget_in_keyring(name: str, fields: Sequence[str]) -> bool:
    """Remove fields; returns whether there were any."""
    lookup = _keyring(name)
    stored = [key for key in fields if lookup(key)]
    if stored and not _answers(lambda ring: [ring.delete_password(KEYRING_SERVICE, f"{name}.{key}") for key in stored]):
        raise CredentialsError(f"{name}: the keyring did not remove {', '.join(stored)}; remove them there")
    return bool(stored)


def _forget_in_file(name: str, path: Path) -> bool:
    """Remove a table; returns whether there was one."""
    tables = _tables(path)
    if name not in tables:
        return False
    _write(path, {key: table for key, table in tables.items() if key != name})
    return True


def _sets_of(name: str) -> Sequence[CredentialSet]:
    scheme, _, number = name.rpartition("-")
    is_second = bool(scheme) and number.isdecimal() and drivers.has_driver(scheme)
    sets: Sequence[CredentialSet] = getattr(drivers.driver_class(scheme if is_second else name), "credential_sets", ())
    return sets


def environment_name(scheme: str, field: str) -> str:
    """Returns the name of the environment variable for one field."""
    return f"CLOUDBENCH_{scheme}_{field}".upper().replace("-", "_").replace("+", "_").replace("+", "_")


def credentials_path() -> Path:
    """The file in the user's config folder: one TOML table per provider."""
    import platformdirs

    return platformdirs.user_config_path("pytest-cloudbench") / "credentials.toml"


def _sources(scheme: str, sets: Sequence[CredentialSet]) -> Iterator[tuple[str, Sequence[CredentialSet], _Lookup]]:
    """Yields the sources in order, with the sets that may be there; each is opened only if those before had nothing."""
    given = [each for each in sets if not each.single_use]  # only what is stored can be renewed
    yield "the environment", given, lambda field: os.environ.get(environment_name(scheme, field))
    yield "the keyring", sets, _keyring(scheme)
    path = credentials_path()
    yield str(path), sets, _file(scheme, path)
    # A second account has none; nor has a driver whose library is missing while another one uses its accounts.
    if drivers.has_driver(scheme) and not drivers.missing_library(scheme):
        for place, values in getattr(drivers.driver_class(scheme), "elsewhere", tuple)():
            yield place, given, values.get


def _fields(sets: Sequence[CredentialSet]) -> list[str]:
    return list(dict.fromkeys(name for fields in sets for name in (*fields.required, *fields.optional)))


def _collect(sets: Sequence[CredentialSet], lookup: _Lookup) -> Secrets:
    values = {name: (lookup(name) or "").strip() for name in _fields(sets)}
    return Secrets({name: value for name, value in values.items() if value})


def _complete(
    scheme: str, sets: Sequence[CredentialSet], found: Secrets, said: Mapping[str, str], source: str
) -> Secrets:
    known = {**found, **said}
    for fields in sets:
        if all(name in known for name in fields.required):
            names = (*fields.required, *fields.optional)
            return Secrets({name: known[name] for name in names if name in known})
    raise CredentialsError(
        f"{scheme}: {source} has {', '.join(found)} only, which is not enough: {_what_to_set(scheme, sets)}"
    )


def _what_to_set(scheme: str, sets: Sequence[CredentialSet]) -> str:
    ways = [
        " and ".join(environment_name(scheme, name) for name in fields.required)
        for fields in sets
        if not fields.single_use
    ]
    absent = extras.missing_extra("keyring")
    ring = f" ({absent})" if absent else ""
    return (
        f"run 'cloudbench login {scheme}'{ring}; or set {', or '.join(ways)}; "
        f'or write {sets[0].required[0]} = "..." below [{scheme}] in {credentials_path()} (mode 0600)'
    )


def _from_option(scheme: str, sets: Sequence[CredentialSet], token_env: str) -> Secrets:
    value = os.environ.get(token_env, "").strip()
    if not value:
        raise CredentialsError(f"{scheme}: token_env={token_env}: this environment variable is not set or empty")
    return Secrets({sets[0].required[0]: value})


def _keyring(scheme: str) -> _Lookup:
    """Returns a lookup in the keyring; it finds nothing if there is no keyring or the keyring does not answer."""
    dead = False

    def lookup(field: str) -> str | None:
        nonlocal dead
        if dead:
            return None
        is_there, found = ask_keyring(f"{scheme}.{field}")
        dead = not is_there
        return found

    return lookup


def ask_keyring(user: str) -> tuple[bool, str | None]:
    """Returns whether there is a keyring that answers, and what it has for a user."""
    answers: list[str | None] = []
    # A daemon thread, because nothing else bounds a backend that waits for its user.
    asking = threading.Thread(target=_ask_keyring, args=(user, answers), daemon=True)
    asking.start()
    asking.join(_KEYRING_S)
    return bool(answers), answers[0] if answers else None


def _ask_keyring(user: str, answers: list[str | None]) -> None:
    """Append the answer; append nothing if there is no keyring or it is broken."""
    try:
        import keyring

        answers.append(keyring.get_password(KEYRING_SERVICE, user))
    except Exception:  # backends raise whatever their libraries do; the file is the fallback
        return


def _answers(call: Callable[[Any], object]) -> bool:
    """Returns whether the keyring did what it was asked for; False if there is none."""
    done = threading.Event()

    def ask() -> None:
        try:
            import keyring

            call(keyring)
        except Exception:  # backends raise whatever their libraries do; the file is the fallback
            return
        done.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_KEYRING_S)
    return done.is_set()


def _file(scheme: str, path: Path) -> _Lookup:
    table = _tables(path).get(scheme, {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise CredentialsError(f"{path}: [{scheme}]: expected a table of texts")
    return table.get


def _tables(path: Path) -> dict[str, Any]:
    """Returns what the file holds; nothing if there is none. Raises CredentialsError."""
    try:
        with opening.open_regular_file(path, opening.MIB) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if os.name == "posix" and mode & 0o077:
                raise CredentialsError(f"{path}: other users may read it (mode {mode:04o}): run 'chmod 600 {path}'")
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # Not chained: a TOML error can quote the line, and the line can hold a token.
        line = str(error).rpartition("(at ")[2].rstrip(")")
        raise CredentialsError(f"{path}: is not TOML ({line})") from None


def _write(path: Path, tables: Mapping[str, Any]) -> None:
    """Replace the file at once, readable by its owner only. Raises CredentialsError."""
    lines = []
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
            raise CredentialsError(f"{path}: [{name}]: expected a table of texts; correct it first")
        lines += [f"[{_quoted(name)}]", *(f"{_quoted(key)} = {_quoted(value)}" for key, value in table.items()), ""]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(path, lambda file: file.write("\n".join(lines).encode()), mode=0o600)
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be written: {error.strerror}") from error


def _quoted(text: str) -> str:
    """Returns a basic string of TOML, which differs from JSON's only where a character needs two escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
