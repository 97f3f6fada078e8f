"""The commands about accounts: ``cloudbench login``, ``status``, ``logout`` and ``doctor``.

What may live here: what they ask and print. How a login goes is in ``login``, where credentials are in ``credentials``.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin
from pytest_cloudbench.model import CredentialsError, Endpoint, ProviderSpec, SpecError, UsageError


def login(options: argparse.Namespace) -> int:
    """Log in, and store what was given. Returns the exit status. Raises UsageError."""
    if ":" in options.provider:
        return _rehearse(options)
    name = _account_of(options.provider)
    driver = _driver_of(options.provider)
    sets = _sets(name, driver)
    oauth: OAuthLogin | None = getattr(driver, "oauth", None)
    if oauth is None or options.keys:
        values = _typed(sets)
    else:
        values = _agreed(options, oauth, name, "")
        values = _fitting(sets, values)
    from pytest_cloudbench.providers import credentials

    _say(f"stored in {credentials.store(name, values)}: {', '.join(values)}")
    if oauth is not None and values.keys() == {"access_token"}:
        _say("access tokens expire soon, usually within an hour; log in again then")
    _say(f"try it: cloudbench doctor {options.provider.partition('-')[0]}")
    return 0


def status(options: argparse.Namespace) -> int:
    """Show who has credentials. Returns the exit status."""
    from pytest_cloudbench import drivers
    from pytest_cloudbench.providers import credentials

    is_any = False
    for scheme in drivers.schemes():
        for name in (scheme, f"{scheme}-2"):
            try:
                is_own = _account_of(scheme) == scheme and _needs_credentials(scheme)
                found = list(credentials.places(name)) if is_own else []
            except SpecError:
                continue  # its library is not installed
            for number, (place, fields) in enumerate(found):
                is_any = True
                _say(f"{name}: {', '.join(fields)} ({place}){', not used: the one above comes first' * bool(number)}")
    if not is_any:
        _say("no credentials: run cloudbench login PROVIDER")
    return 0


def logout(options: argparse.Namespace) -> int:
    """Forget stored credentials. Returns the exit status. Raises UsageError."""
    from pytest_cloudbench.providers import credentials

    name = _account_of(options.provider)
    _sets(name, _driver_of(name))
    places = credentials.forget(name)
    _say(f"{name}: removed from {' and '.join(places)}" if places else f"{name}: nothing was stored")
    for place, fields in credentials.places(name):
        _say(f"{name}: {place} still has {', '.join(fields)}; remove it yourself")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Examine a provider. Returns 0 if nothing is wrong. Raises UsageError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.commands.doctor import examine
    from pytest_cloudbench.results.owner import owner_text

    is_well = True
    with providers.provided(options.provider) as provider:
        for finding in examine(provider, owner_text()):
            mark = {True: "ok  ", False: "FAIL", None: "    "}[finding.is_good]
            _say(f"{mark}  {finding.step:<10} {finding.told}")
            is_well &= finding.is_good is not False
    return 0 if is_well else 1


def _rehearse(options: argparse.Namespace) -> int:
    """Log in to an emulator: the same steps, but nothing is stored."""
    from pytest_cloudbench import drivers, providers
    from pytest_cloudbench.providers.for_agents import Provided
    from pytest_cloudbench.providers.login import of_service

    if not ProviderSpec.parse(options.provider).is_emulated:
        raise UsageError(f"login {options.provider}: expected a provider's name, or emulated:NAME")
    with providers.provided(options.provider) as provider:
        endpoint = provider.endpoint
        assert endpoint is not None
        oauth: OAuthLogin | None = getattr(drivers.driver_class(endpoint.api), "oauth", None)
        if oauth is None:
            raise UsageError(f"login {options.provider}: {endpoint.api} has no OAuth; there is nothing to rehearse")
        options.client_id = options.client_id or "rehearsal"
        values = _agreed(options, of_service(oauth, endpoint), endpoint.api, endpoint.ca_file)
        _say(f"the login works; nothing is stored: {', '.join(values)}")
        tried = Endpoint(endpoint.urls, dict(values), endpoint.ca_file, api=endpoint.api)
        providers.connect(Provided(endpoint.api, tried)).close()
    return 0


def _agreed(options: argparse.Namespace, oauth: OAuthLogin, name: str, ca_file: str) -> dict[str, str]:
    """Returns the credentials to which the user agrees, and the application's that a refresh needs."""
    from pytest_cloudbench.providers.login import Application, by_browser, by_device_code, by_pasted_code

    if options.device and not oauth.device_url:
        raise UsageError(f"login {name}: there is no device code; leave --device out, or use --no-browser")
    client_id, client_secret = (options.client_id, "") if ca_file else _application(options.client_id, oauth, name)
    app = Application(oauth, client_id, client_secret, ca_file)
    if options.device:
        tokens = by_device_code(app, _say)
    elif options.no_browser:
        tokens = by_pasted_code(app, _say, _ask)
    else:
        tokens = by_browser(app, _say)
    own = {oauth.client_id: client_id, **({oauth.client_secret: client_secret} if client_secret else {})}
    return {**tokens, **own}


def _application(given: str | None, oauth: OAuthLogin, name: str) -> tuple[str, str]:
    """Returns id and secret of the user's application: of the one that is given, or was used before, or is typed."""
    from pytest_cloudbench.providers import credentials

    if not given:
        source, stored = credentials.known(name, (oauth.client_id, oauth.client_secret))
        if source:
            _say(f"with the application {stored[oauth.client_id]}, from {source}; --client-id names another")
            return stored[oauth.client_id], stored.get(oauth.client_secret, "")
        back = f", and to return to http://127.0.0.1:{oauth.port}/" if oauth.port else ""
        _say(f"register an application at {oauth.register}; allow it to read and write files{back}")
    client_id = given or _ask(f"{oauth.client_id}: ")
    return client_id, _ask(f"{oauth.client_secret} (empty if there is none): ", is_secret=True)


def _fitting(sets: Sequence[CredentialSet], values: Mapping[str, str]) -> dict[str, str]:
    """Returns what is worth storing: a refresh token and what it needs, or an access token that ends soon."""
    by_refresh = [fields for fields in sets if "refresh_token" in fields.required]
    for fields in [*by_refresh, *sets]:
        if all(name in values for name in fields.required):
            names = (*fields.required, *fields.optional)
            return {name: values[name] for name in names if name in values}
    raise CredentialsError(f"login: the provider gave {', '.join(values)}, which is not enough")


def _typed(sets: Sequence[CredentialSet]) -> dict[str, str]:
    """Ask for the credentials of one set."""
    sets = [each for each in sets if not each.single_use]  # what is typed in may have been used already
    chosen = sets[0]
    if len(sets) > 1:
        for number, fields in enumerate(sets, 1):
            _say(f"{number}: {', '.join(fields.required)}")
        answer = _ask(f"which one (1 to {len(sets)})? ")
        if answer not in map(str, range(1, len(sets) + 1)):
            raise UsageError(f"login: expected a number from 1 to {len(sets)}, got {answer!r}")
        chosen = sets[int(answer) - 1]
    values = {}
    for field in (*chosen.required, *chosen.optional):
        hint = " (may be empty)" if field in chosen.optional else ""
        value = _ask(f"{field}{hint}: ", is_secret=field not in chosen.public)
        if value:
            values[field] = value
        elif field in chosen.required:
            raise UsageError(f"login: {field} is needed")
    return values


def _driver_of(name: str) -> Any:
    from pytest_cloudbench import drivers

    scheme, _, number = name.rpartition("-")
    return drivers.driver_class(scheme if scheme and number.isdecimal() else name)


def _account_of(name: str) -> str:
    """Returns the name under which an account's credentials are: a driver may use those of another one."""
    from pytest_cloudbench import drivers

    scheme, _, number = name.rpartition("-")
    is_numbered = bool(scheme) and number.isdecimal()
    return f"{drivers.credentials_of(scheme)}-{number}" if is_numbered else drivers.credentials_of(name)


def _sets(name: str, driver: Any) -> Sequence[CredentialSet]:
    sets: Sequence[CredentialSet] = getattr(driver, "credential_sets", ())
    if not sets:
        raise UsageError(f"{name}: this provider needs no credentials")
    return sets


def _needs_credentials(scheme: str) -> bool:
    return bool(getattr(_driver_of(scheme), "credential_sets", ()))


def _ask(question: str, *, is_secret: bool = False) -> str:
    """Returns the user's input; a secret is not shown. Raises UsageError if there is no user to ask."""
    read: Callable[[str], str] = getpass.getpass if is_secret and sys.stdin.isatty() else _line
    try:
        return read(question).strip()
    except EOFError:
        raise UsageError(f"login: no answer to {question.strip()!r}; run it in a terminal") from None


def _line(question: str) -> str:
    sys.stdout.write(question)
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
