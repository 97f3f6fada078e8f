"""The commands about accounts: ``cloudbench login``, ``status``, ``logout`` and ``doctor``.

The steps of a login are in ``providers.login``, the stores of credentials in ``providers.credentials``.
"""

from __future__ import annotations

import argparse
import getpass
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cloudbench.commands.command import Command, argument, output_width, print_line
from pytest_cloudbench.drivers.base import CredentialSet, OAuthLogin
from pytest_cloudbench.model import CredentialsError, Endpoint, ProviderSpec, SpecError, UsageError

if TYPE_CHECKING:
    from pytest_cloudbench.providers.credentials import ProviderAccount


def login(options: argparse.Namespace) -> int:
    """Log in, and store the credentials. Returns the exit status. Raises UsageError."""
    if ":" in options.provider:
        return _rehearse_login(options)
    from pytest_cloudbench.providers import credentials

    account = _find_account(options.provider)
    oauth: OAuthLogin | None = getattr(account.bound.driver, "oauth", None)
    if oauth is None or options.keys:
        values = _ask_for_fields(account.sets)
    else:
        values = _log_in(options, oauth, account, "")
        values = _select_fields(account.sets, values)
    print_line(f"stored in {credentials.store(account, values)}: {', '.join(values)}")
    if oauth is not None and values.keys() == {"access_token"}:
        print_line("access tokens expire soon, usually within an hour; log in again then")
    number = "" if account.number == 1 else f"?account_number={account.number}"
    print_line(f"try it: cloudbench doctor {account.bound.spec.scheme}{number}")
    return 0


def status(options: argparse.Namespace) -> int:
    """Show the providers that have credentials. Returns the exit status."""
    from pytest_cloudbench import drivers

    schemes = [*drivers.schemes(), *drivers.installed_schemes()]
    lines = [line for scheme in schemes for line in _list_credentials(scheme)]
    for line in lines or ["no credentials: run cloudbench login PROVIDER"]:
        print_line(line)
    return 0


def _list_credentials(scheme: str) -> Iterator[str]:
    """Yield a line for each source of credentials of a provider's accounts: the first, ``NAME-2`` and so on."""
    from pytest_cloudbench import drivers
    from pytest_cloudbench.providers import credentials
    from pytest_cloudbench.providers.credentials import ProviderAccount

    for number in itertools.count(1):
        name = scheme if number == 1 else f"{scheme}-{number}"
        try:
            account = ProviderAccount.named(name)
        except SpecError as error:
            if scheme not in drivers.schemes():  # of this package's drivers only a library is not installed
                yield str(error)
            return
        is_own = account.name == name and account.sets
        sources = list(credentials.list_sources(account)) if is_own else []
        if not sources and number > 1:
            return
        for index, (source, fields) in enumerate(sources):
            remark = ", not used: the one above comes first" if index else ""
            yield f"{name}: {', '.join(fields)} ({source}){remark}"


def logout(options: argparse.Namespace) -> int:
    """Forget stored credentials. Returns the exit status. Raises UsageError."""
    from pytest_cloudbench.providers import credentials

    account = _find_account(options.provider)
    name, stores = account.name, credentials.forget(account)
    print_line(f"{name}: removed from {' and '.join(stores)}" if stores else f"{name}: nothing was stored")
    for source, fields in credentials.list_sources(account):
        print_line(f"{name}: {source} still has {', '.join(fields)}; remove it yourself")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Examine a provider. Returns 0 if nothing is wrong. Raises UsageError."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.commands.doctor import examine
    from pytest_cloudbench.results.owner import owner_text

    is_healthy = True
    with providers.provided(options.provider) as provider:
        for finding in examine(provider, owner_text()):
            mark = {True: "ok  ", False: "FAIL", None: "    "}[finding.is_good]
            line = f"{mark}  {finding.step:<10} {finding.message}"
            for part in textwrap.wrap(line, output_width(), subsequent_indent=" " * 17, break_on_hyphens=False):
                print_line(part)
            is_healthy &= finding.is_good is not False
    return 0 if is_healthy else 1


def _rehearse_login(options: argparse.Namespace) -> int:
    """Log in to an emulator by the steps of a real login. Nothing is stored."""
    from pytest_cloudbench import providers
    from pytest_cloudbench.providers.credentials import ProviderAccount
    from pytest_cloudbench.providers.for_agents import Provided
    from pytest_cloudbench.providers.login import redirect_to_service

    if not ProviderSpec.parse(options.provider).is_emulated:
        raise UsageError(f"login {options.provider}: expected a provider's name, or emulated:NAME")
    with providers.provided(options.provider) as provider:
        endpoint = provider.endpoint
        assert endpoint is not None
        account = ProviderAccount.named(endpoint.api)
        oauth: OAuthLogin | None = getattr(account.bound.driver, "oauth", None)
        if oauth is None:
            raise UsageError(f"login {options.provider}: {endpoint.api} has no OAuth; there is nothing to rehearse")
        options.client_id = options.client_id or "rehearsal"
        values = _log_in(options, redirect_to_service(oauth, endpoint), account, endpoint.ca_file)
        print_line(f"the login works; nothing is stored: {', '.join(values)}")
        logged_in = Endpoint(endpoint.urls, dict(values), endpoint.ca_file, api=endpoint.api)
        providers.connect(Provided(endpoint.api, logged_in)).close()
    return 0


def _log_in(options: argparse.Namespace, oauth: OAuthLogin, account: ProviderAccount, ca_file: str) -> dict[str, str]:
    """Return the tokens that the user grants, and the fields of the application that a refresh needs."""
    from pytest_cloudbench.providers.login import (
        Application,
        login_by_browser,
        login_by_device_code,
        login_by_pasted_code,
    )

    if options.device and not oauth.device_url:
        raise UsageError(f"login {account.name}: there is no device code; leave --device out, or use --no-browser")
    client_id, client_secret = (
        (options.client_id, "") if ca_file else _find_application(options.client_id, oauth, account)
    )
    app = Application(oauth, client_id, client_secret, ca_file)
    if options.device:
        tokens = login_by_device_code(app, print_line)
    elif options.no_browser:
        tokens = login_by_pasted_code(app, print_line, _ask_user)
    else:
        tokens = login_by_browser(app, print_line)
    app_fields = {oauth.client_id: client_id, **({oauth.client_secret: client_secret} if client_secret else {})}
    return {**tokens, **app_fields}


def _find_application(client_id: str | None, oauth: OAuthLogin, account: ProviderAccount) -> tuple[str, str]:
    """Return id and secret of the user's application: of ``client_id``, of the last login, or as typed."""
    from pytest_cloudbench.providers import credentials

    if not client_id:
        source, stored = credentials.find_fields(account, (oauth.client_id, oauth.client_secret))
        if source:
            print_line(f"with the application {stored[oauth.client_id]}, from {source}; --client-id names another")
            return stored[oauth.client_id], stored.get(oauth.client_secret, "")
        redirect_hint = f", and to return to http://127.0.0.1:{oauth.port}/" if oauth.port else ""
        print_line(f"register an application at {oauth.register}; allow it to read and write files{redirect_hint}")
        client_id = _ask_user(f"{oauth.client_id}: ")
    return client_id, _ask_user(f"{oauth.client_secret} (empty if there is none): ", is_secret=True)


def _select_fields(sets: Sequence[CredentialSet], values: Mapping[str, str]) -> dict[str, str]:
    """Return the fields worth storing: a refresh token with what it needs, or an access token, which expires soon."""
    by_refresh = [fields for fields in sets if "refresh_token" in fields.required]
    for fields in [*by_refresh, *sets]:
        if all(name in values for name in fields.required):
            names = (*fields.required, *fields.optional)
            return {name: values[name] for name in names if name in values}
    raise CredentialsError(f"login: the provider gave {', '.join(values)}, which is not enough")


def _ask_for_fields(sets: Sequence[CredentialSet]) -> dict[str, str]:
    """Ask the user for the credentials of one set."""
    sets = [fields for fields in sets if not fields.single_use]  # what is typed in may have been used already
    chosen = sets[0]
    if len(sets) > 1:
        for number, fields in enumerate(sets, 1):
            print_line(f"{number}: {', '.join(fields.required)}")
        answer = _ask_user(f"which one (1 to {len(sets)})? ")
        if answer not in map(str, range(1, len(sets) + 1)):
            raise UsageError(f"login: expected a number from 1 to {len(sets)}, got {answer!r}")
        chosen = sets[int(answer) - 1]
    values = {}
    for field in (*chosen.required, *chosen.optional):
        hint = " (may be empty)" if field in chosen.optional else ""
        value = _ask_user(f"{field}{hint}: ", is_secret=field not in chosen.public)
        if value:
            values[field] = value
        elif field in chosen.required:
            raise UsageError(f"login: {field} is needed")
    return values


def _find_account(name: str) -> ProviderAccount:
    """Return the account of a driver that needs credentials. Raises UsageError."""
    from pytest_cloudbench.providers.credentials import ProviderAccount

    account = ProviderAccount.named(name)
    if not account.sets:
        raise UsageError(f"{account.name}: this provider needs no credentials")
    return account


def _ask_user(question: str, *, is_secret: bool = False) -> str:
    """Return the user's input, without an echo if it is secret. Raises UsageError if there is no user to ask."""
    read: Callable[[str], str] = getpass.getpass if is_secret and sys.stdin.isatty() else _read_line
    try:
        return read(question).strip()
    except EOFError:
        raise UsageError(f"login: no answer to {question.strip()!r}; run it in a terminal") from None


def _read_line(question: str) -> str:
    sys.stdout.write(question)
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


COMMANDS = (
    Command(
        "login",
        login,
        "log in to a provider and store its credentials",
        "Log in to a provider, by a browser where it has OAuth, or by typing its keys. Credentials go to the system's "
        "keyring, or to a file that only you can read. emulated:NAME is a rehearsal that stores nothing.",
        (
            argument("provider", metavar="PROVIDER", help="its scheme; NAME-2 is a second account"),
            argument(
                "--client-id", metavar="ID",
                help="the application's id (default: that of the login before, or asked for)",
            ),
            argument("--no-browser", action="store_true", help="paste what a browser elsewhere shows"),
            argument(
                "--device", action="store_true", help="type a code on any device, where the provider offers it"
            ),
            argument("--keys", action="store_true", help="type the credentials, though the provider has OAuth"),
        ),
    ),
    Command(
        "status",
        status,
        "show which providers have credentials, and from where",
        "Show which providers have credentials, where they are, and which fields; never their values.",
    ),
    Command(
        "logout",
        logout,
        "forget a provider's stored credentials",
        "Remove a provider's credentials from the keyring and the file. Variables of the environment stay.",
        (argument("provider", metavar="PROVIDER", help="its scheme, or NAME-2"),),
    ),
    Command(
        "doctor",
        doctor,
        "try a provider with one small file, and say what to fix",
        "Connect, write, read back, list and delete one small file; compare clocks; show quota and limits. Exit status "
        "1 if something is wrong.",
        (argument("provider", metavar="PROVIDER", help="as for --provider"),),
    ),
)  # fmt: skip
