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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.drivers.base import CredentialSet
from pytest_cloudbench.model import CredentialsError, ProviderSpec, did_you_mean
from pytest_cloudbench.support import extras, opening
from pytest_cloudbench.support.printable import printable

KEYRING_SERVICE = "pytest-cloudbench"

# A locked keyring asks its user for a password. A test run has no user: give up and go on.
_KEYRING_S = 5.0

_Lookup = Callable[[str], str | None]


class Secrets(dict[str, str]):
    """A mapping of fields to values, whose ``repr`` hides the values."""

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self)})"

    __str__ = __repr__


class NoCredentialsError(CredentialsError):
    """No source has any credentials of an account."""


@dataclass(frozen=True, slots=True)
class ProviderAccount:
    """An account with a provider, whose credentials are looked up.

    Attributes:
        name: the name under which its credentials are: the scheme, or ``SCHEME-2`` for the second account.
        bound: the driver that logs in to it.
        number: its number among the accounts with the same provider, from 1.
        stated: fields that the provider's spec itself gives, such as an account's name. They are not looked up.
    """

    name: str
    bound: BoundSpec
    number: int = 1
    stated: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bound: BoundSpec, number: int = 1) -> ProviderAccount:
        """Return the account that a spec uses."""
        public = {name for fields in bound.credential_sets for name in fields.public}
        stated = {name: value for name, value in bound.spec.params.items() if name in public}
        return cls(bound.owner if number == 1 else f"{bound.owner}-{number}", bound, number, stated)

    @classmethod
    def named(cls, name: str) -> ProviderAccount:
        """Return the account that a user names by a driver's scheme, or ``SCHEME-2``. Raises SpecError."""
        scheme, _, number = name.rpartition("-")
        if scheme and number.isdecimal() and drivers.has_driver(scheme):
            return cls.of(drivers.bind(ProviderSpec.parse(scheme)), int(number))
        return cls.of(drivers.bind(ProviderSpec.parse(name)))

    @property
    def sets(self) -> Sequence[CredentialSet]:
        """The sets of fields by which the driver can log in. Empty if it needs none."""
        return self.bound.credential_sets


def load(account: ProviderAccount) -> Mapping[str, str]:
    """Return the credentials of an account.

    They are empty if its driver needs none, or can do without and none were found. Raises CredentialsError, which says
    in one line what to set.
    """
    sets, name = account.sets, account.name
    if not sets:
        return Secrets()
    if "token_env" in account.bound.spec.params:
        return _from_option(account, account.bound.spec.params["token_env"])
    for source, usable, lookup in _sources(account):
        values = _collect(usable, lookup)
        if values:
            return _complete(name, usable, values, account.stated, source)
    if any(not fields.required for fields in sets):
        return Secrets()
    raise NoCredentialsError(f"{name}: no credentials found: {_what_to_set(name, sets)}")


def list_sources(account: ProviderAccount) -> Iterator[tuple[str, list[str]]]:
    """Yield each source that has credentials of an account, and the fields that it has. The first one is used.

    Raises CredentialsError.
    """
    for source, usable, lookup in _sources(account):
        if values := _collect(usable, lookup):
            yield source, list(values)


def find_fields(account: ProviderAccount, fields: Sequence[str]) -> tuple[str, Secrets]:
    """Return the first source that has the first of these fields, and the values of those that it has.

    Both are empty if no source has it. Raises CredentialsError.
    """
    for source, _, lookup in _sources(account):
        values = Secrets({field: value for field in fields if (value := (lookup(field) or "").strip())})
        if fields[0] in values:
            return source, values
    return "", Secrets()


def store(account: ProviderAccount, values: Mapping[str, str]) -> str:
    """Store credentials in the keyring, or in a file that only its owner can read where there is no keyring.

    They replace at once what was stored for this account before, so that no reader sees half of each. Returns where
    they are. Raises CredentialsError.
    """
    path, name = credentials_path(), account.name
    if _call_keyring(lambda ring: [ring.set_password(KEYRING_SERVICE, f"{name}.{key}", values[key]) for key in values]):
        _forget_in_keyring(name, [key for key in _fields(account.sets) if key not in values])
        _forget_in_file(name, path)
        return "the keyring"
    _forget_in_keyring(name, _fields(account.sets))
    _write(path, {**_tables(path), name: dict(values)})
    return str(path)


def forget(account: ProviderAccount) -> list[str]:
    """Remove the stored credentials of an account. Returns the stores that had any. Raises CredentialsError."""
    path = credentials_path()
    stores = ["the keyring"] if _forget_in_keyring(account.name, _fields(account.sets)) else []
    return [*stores, str(path)] if _forget_in_file(account.name, path) else stores


def _forget_in_keyring(name: str, fields: Sequence[str]) -> bool:
    """Remove fields from the keyring. Returns whether it had any."""
    lookup = _keyring(name)
    stored = [key for key in fields if lookup(key)]
    if stored and not _call_keyring(
        lambda ring: [ring.delete_password(KEYRING_SERVICE, f"{name}.{key}") for key in stored]
    ):
        raise CredentialsError(f"{name}: the keyring did not remove {', '.join(stored)}; remove them there")
    return bool(stored)


def _forget_in_file(name: str, path: Path) -> bool:
    """Remove a table from the file. Returns whether it had one."""
    tables = _tables(path)
    if name not in tables:
        return False
    _write(path, {key: table for key, table in tables.items() if key != name})
    return True


def environment_name(account: str, field: str) -> str:
    """Return the name of the environment variable for one field of an account, which is given by its name."""
    return f"CLOUDBENCH_{account}_{field}".upper().replace("-", "_").replace("+", "_")


def credentials_path() -> Path:
    """Return the path of the file in the user's config folder, which has one TOML table per account."""
    import platformdirs

    return platformdirs.user_config_path("pytest-cloudbench") / "credentials.toml"


def _sources(account: ProviderAccount) -> Iterator[tuple[str, Sequence[CredentialSet], _Lookup]]:
    """Yield the sources in order, with the sets that each may hold. A source is opened only when its turn comes."""
    name, sets = account.name, account.sets
    # A single-use token works only where its successor can be stored.
    lasting = [fields for fields in sets if not fields.single_use]
    yield "the environment", lasting, lambda field: os.environ.get(environment_name(name, field))
    yield "the keyring", sets, _keyring(name)
    path = credentials_path()
    yield str(path), sets, _file(name, _fields(sets), path)
    for source, values in _elsewhere(account):
        yield source, lasting, values.get


def _elsewhere(account: ProviderAccount) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the credentials kept by the provider's own programs. These have no second account."""
    if account.number != 1:
        return
    driver: Any = account.bound.driver
    if account.name != account.bound.spec.scheme:  # the accounts of another driver, whose library may be missing
        if not drivers.has_driver(account.name) or drivers.missing_library(account.name):
            return
        driver = drivers.driver_class(account.name)
    yield from getattr(driver, "elsewhere", tuple)()


def _fields(sets: Sequence[CredentialSet]) -> list[str]:
    return list(dict.fromkeys(name for fields in sets for name in (*fields.required, *fields.optional)))


def _collect(sets: Sequence[CredentialSet], lookup: _Lookup) -> Secrets:
    values = {name: (lookup(name) or "").strip() for name in _fields(sets)}
    return Secrets({name: value for name, value in values.items() if value})


def _complete(
    account: str, sets: Sequence[CredentialSet], values: Secrets, stated: Mapping[str, str], source: str
) -> Secrets:
    all_values = {**values, **stated}
    for fields in sets:
        if all(name in all_values for name in fields.required):
            names = (*fields.required, *fields.optional)
            return Secrets({name: all_values[name] for name in names if name in all_values})
    raise CredentialsError(
        f"{account}: {source} has {', '.join(values)} only, which is not enough: {_what_to_set(account, sets)}"
    )


def _what_to_set(account: str, sets: Sequence[CredentialSet]) -> str:
    ways = [
        " and ".join(environment_name(account, name) for name in fields.required)
        for fields in sets
        if not fields.single_use
    ]
    absent = extras.missing_extra("keyring")
    ring = f" ({absent})" if absent else ""
    return (
        f"run 'cloudbench login {account}'{ring}; or set {', or '.join(ways)}; "
        f'or write {sets[0].required[0]} = "..." below [{account}] in {credentials_path()} (mode 0600)'
    )


def _from_option(account: ProviderAccount, token_env: str) -> Secrets:
    field, scheme = account.bound.token_field, account.bound.spec.scheme
    if not token_env.isidentifier():  # it is not repeated, because it may be the token itself
        raise CredentialsError(f"{scheme}: token_env: expected the name of an environment variable that has the token")
    if not field:
        raise CredentialsError(
            f"{scheme}: token_env={token_env}: one value is not enough here; see cloudbench login {scheme}"
        )
    value = os.environ.get(token_env, "").strip()
    if not value:
        raise CredentialsError(f"{scheme}: token_env={token_env}: this environment variable is not set or empty")
    return Secrets({field: value})


def _keyring(account: str) -> _Lookup:
    """Return a lookup in the keyring. It finds nothing if there is no keyring or the keyring does not answer."""
    is_dead = False

    def lookup(field: str) -> str | None:
        nonlocal is_dead
        if is_dead:
            return None
        has_answered, value = ask_keyring(f"{account}.{field}")
        is_dead = not has_answered
        return value

    return lookup


def ask_keyring(user: str) -> tuple[bool, str | None]:
    """Return whether a keyring answers, and the value that it has for a user."""
    answers: list[str | None] = []
    # A daemon thread, because nothing else bounds a backend that waits for its user.
    thread = threading.Thread(target=_ask_keyring, args=(user, answers), daemon=True)
    thread.start()
    thread.join(_KEYRING_S)
    return bool(answers), answers[0] if answers else None


def _ask_keyring(user: str, answers: list[str | None]) -> None:
    """Append the answer, or nothing if there is no keyring or it is broken."""
    try:
        import keyring

        answers.append(keyring.get_password(KEYRING_SERVICE, user))
    except Exception:  # backends raise whatever their libraries do; the file is the fallback
        return


def _call_keyring(call: Callable[[Any], object]) -> bool:
    """Call ``call`` with the keyring. Returns False if it fails, if there is no keyring, or if that does not answer."""
    done = threading.Event()

    def ask() -> None:
        try:
            import keyring

            call(keyring)
        except Exception:  # backends raise whatever their libraries do; the file is the fallback
            return
        done.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_KEYRING_S)
    return done.is_set()


def _file(account: str, fields: Sequence[str], path: Path) -> _Lookup:
    table = _tables(path).get(account, {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise CredentialsError(f"{path}: [{account}]: expected a table of texts")
    for key in table:
        if key not in fields:  # what is misspelt would be missing, or ignored if the driver can do without
            expected = f"expected one of {', '.join(fields)}{did_you_mean(key, fields)}"
            raise CredentialsError(f"{path}: [{account}]: {printable(key)}: no such field; {expected}")
    return table.get


def _tables(path: Path) -> dict[str, Any]:
    """Read all tables of the file. There are none if there is no file. Raises CredentialsError."""
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
        target = path.resolve()  # a user's symbolic link stays one
        target.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(target, lambda file: file.write("\n".join(lines).encode()), mode=0o600)
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be written: {error.strerror}") from error


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which is a string of JSON in which DEL is escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
