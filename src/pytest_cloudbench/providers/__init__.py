"""The steps from ``--provider`` to a driver: resolve the spec, start services, connect, also for composite providers.

The controller resolves a spec and starts its services (``Providers``). An agent connects to what the controller gave it
(``connect``). Credentials, profiles, recipes and endpoints are loaded here and nowhere else. Fifty agents import this
module, so functions import what only the controller needs.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import BoundSpec
from pytest_cloudbench.drivers.base import Composite, Described, Driver
from pytest_cloudbench.model import (
    LOCAL,
    SERVICE_SCHEMES,
    ConfigError,
    Endpoint,
    ProviderSpec,
    ServiceError,
    SpecError,
    UsageError,
    Verb,
)
from pytest_cloudbench.providers import elsewhere
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.providers.leaves import Leaf, connect_account, load_credentials
from pytest_cloudbench.providers.numbered import split_number, with_number
from pytest_cloudbench.providers.stand_ins import (
    ServiceSettings,
    StandIn,
    find_stand_in,
    short_digest,
)
from pytest_cloudbench.results import journal
from pytest_cloudbench.results.owner import make_private_folder
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.collector import freeze_objects

if TYPE_CHECKING:
    from pytest_cloudbench.services import Service

_DEEPEST = 8
_MOST_SILENT_S = 30.0
"""A service that is silent for this long is reported, before silent agents are."""


# --- an agent's half ----------------------------------------------------------------------------------


def connect(provided: Provided, *, is_part: bool = False) -> Driver:
    """Connect this process to a provider, or to a part of an array. Raises SpecError and CredentialsError."""
    redact.learn_named(provided.spec)
    bound = drivers.bind(ProviderSpec.parse(provided.spec))
    if not provided.children:
        if provided.sent is not None:
            provided = elsewhere.unpack(provided)
        if provided.endpoint is not None:
            return bound.connect(provided.endpoint, is_part=is_part)
        sent = provided.sent
        load = (
            partial(load_credentials, bound, provided.account) if sent is None else elsewhere.receive_credentials(sent)
        )
        return connect_account(bound, load, is_part=is_part)
    with ExitStack() as stack:
        children = []
        for child in provided.children:
            children.append(connect(child, is_part=True))
            stack.callback(children[-1].close)
        driver = bound.compose(children)
        stack.pop_all()  # from here on the composite closes its children
    return driver


class Provider:
    """A storage service under test, as the ``provider`` fixture gives it.

    Args:
        spec: what the user named.
        driver: the connected driver, safe to use from many threads.
        profile: the emulator's behaviour profile, or None for a real service.
        open: called at first use, in place of the two above. Returns the driver and the facts about the provider.
    """

    has_answered = False
    """True once the provider has confirmed that a run's folder exists."""
    before_use: Callable[[Provider], None] | None = None
    """Called each time a connected driver is about to be handed out. Raises FleetError to refuse."""

    def __init__(
        self, spec: str, driver: Driver | None = None, profile: str | None = None, *,
        open: Callable[[], tuple[Driver, Provided]] | None = None,
    ) -> None:  # fmt: skip
        self.spec, self._open = spec, open
        if driver is not None:
            emulated = "none" if profile is None else "all"
            self.opened = (driver, Provided(spec, profile=profile, emulated=emulated, is_kept=profile is None))

    @cached_property
    def opened(self) -> tuple[Driver, Provided]:
        """The connected driver, and the facts about the provider. Connects at first use."""
        if self._open is None:
            raise UsageError(f"provider {self.spec}: has neither a driver nor a way to connect one")
        opened = self._open()
        freeze_objects()  # of what connecting has imported, too
        return opened

    @property
    def driver(self) -> Driver:
        """The connected driver. Raises FleetError if the user does not agree to its use."""
        driver = self.opened[0]
        if self.before_use is not None:
            self.before_use(self)
        return driver

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of the service that stands in for the provider, if there is one."""
        return self.opened[1].endpoint

    @property
    def addresses(self) -> tuple[tuple[str, int], ...] | None:
        """The addresses of services that stand in for it. Empty if it has none, None if only parts of it have some."""
        return self.opened[1].addresses

    @property
    def profile(self) -> str | None:
        """The emulator's behaviour profile, or None for a real service."""
        return self.opened[1].profile

    def close(self) -> None:
        """Close the driver's connections, if there are any."""
        if "opened" in vars(self):
            self.opened[0].close()

    @property
    def is_kept(self) -> bool:
        """True if written files outlive the run. Then the run is announced, and its folder is in the journal."""
        return self.opened[1].is_kept

    @property
    def emulated(self) -> str:
        """The share of its parts that are emulated: ``all``, ``some`` or ``none``."""
        return self.opened[1].emulated

    @property
    def has_services(self) -> bool:
        """True if the run owns services of this provider, which it can reset and which may inject faults."""
        return self.opened[1].has_services

    def claim(self, folder: str, owner: str) -> None:
        """Record the run's folder above ``folder`` in the journal and mark it, before a run writes into ``folder``.

        No other process removes the run's folder while ``owner``, the run's process, lives. Raises CloudError and
        ResultsError.
        """
        if spec := self._journal_spec:
            journal.claim_folder(self.driver, spec, folder.rpartition("/")[0], owner)

    def release(self, folder: str) -> None:
        """Remove the run's folder above ``folder`` if it is empty now that ``folder`` is gone. Raises CloudError."""
        if spec := self._journal_spec:
            journal.release_folder(self.driver, spec, folder.rpartition("/")[0])

    @property
    def _journal_spec(self) -> str:
        """The spec by which ``cloudbench clean`` finds the provider. Empty if no installed package has its driver."""
        has_driver = drivers.has_driver(ProviderSpec.parse(self.spec).scheme)
        return resolve(self.spec).absolute() if has_driver else ""


def find_provider(text: str, ask: Callable[[str, str], Any]) -> Provider:
    """Return a provider that this agent connects to at first use. ``ask`` asks the controller for it by name."""

    def open_it() -> tuple[Driver, Provided]:
        provided = Provided.from_plain(ask("provide", text))
        return connect(provided), provided

    return Provider(text, open=open_it)


# --- the meaning of a spec ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResolvedSpec:
    """A provider's spec, with everything that it names: its driver, its service, and its children.

    Attributes:
        spec: the user's words.
        bound: the spec that the driver reads, and the driver.
        number: its number in the tree, such as 2.1. The top has none.
        account: the number of its account among those with the same provider, from 1.
        stand_in: the emulator or server that the run starts in the provider's place.
        children: the providers that it is made of.
    """

    spec: ProviderSpec
    bound: BoundSpec
    number: str
    account: int = 1
    stand_in: StandIn | None = None
    children: tuple[ResolvedSpec, ...] = ()

    def parts(self) -> Iterator[ResolvedSpec]:
        """Yield this spec and all that it is made of."""
        yield self
        for child in self.children:
            yield from child.parts()

    def leaves(self) -> Iterator[ResolvedSpec]:
        """Yield the parts that are not composite."""
        return (part for part in self.parts() if not part.children)

    def describe_leaves(self) -> list[Leaf]:
        """Return what is known about the parts that are not composite, before anything connects."""
        return [Leaf.of(part.bound, part.stand_in is not None, part.spec.is_emulated) for part in self.leaves()]

    def accounts(self) -> list[tuple[str, Mapping[Verb, int]]]:
        """Return the spec of each real account that the provider uses, with the requests that its verbs send."""
        return [(leaf.spec, leaf.requests) for leaf in self.describe_leaves() if leaf.is_account]

    @property
    def exclusive_key(self) -> str:
        """A key that no other child may share. Empty if each child has an account of its own."""
        if self.stand_in is not None:
            return ""
        if self.bound.credential_sets:
            token_env = self.bound.spec.params.get("token_env")
            return "" if token_env is None else f"{self.bound.owner}?token_env={token_env}"
        return self.bound.absolute().partition("?")[0]

    def absolute(self) -> str:
        """Return the spec in a form that means the same from every folder."""
        spec = self.spec
        if self.stand_in is not None:
            is_file = "/" in spec.target or spec.target.endswith(".toml")
            _, mark, params = spec.text.partition("?")
            return f"{spec.scheme}:{Path(spec.target).resolve()}{mark}{params}" if is_file else spec.text
        if not self.children:
            return with_number(self.bound.absolute(), int(spec.params.get("account_number", 0)))
        if issubclass(self.bound.driver, Described):
            paths = {name: str(Path(path).resolve()) for name, path in spec.params.items()}  # all of them are paths
            is_file = spec.target.endswith(".toml")  # otherwise the name of an array of this package
            return _format_spec(spec.scheme, str(Path(spec.target).resolve()) if is_file else spec.target, paths)
        _, mark, params = spec.text.removeprefix(f"{spec.text.partition(':')[0]}:{spec.target}").partition("?")
        children = ",".join(f"({child.absolute()})" for child in self.children)
        return f"{spec.scheme}:{children}{mark}{params}"

    def check_time_scale(self, time_scale: float) -> None:
        """Raise UsageError if time runs faster and a part of the provider is not emulated."""
        if time_scale != 1.0 and not all(leaf.spec.is_emulated for leaf in self.leaves()):
            raise UsageError(
                f"--time-scale {time_scale:g} needs an emulated provider: {self.spec.text} runs in real time; "
                "leave the option out"
            )


def resolve(text: str) -> ResolvedSpec:
    """Look up everything that a spec names, once. Raises UsageError in one line, without the secrets in the spec."""
    with _hidden_secrets(text):
        resolved = _resolve_part(ProviderSpec.parse(text), "", Counter())
        keys: set[str] = set()
        for leaf in resolved.leaves() if resolved.children else ():
            if key := leaf.exclusive_key:
                if key in keys:
                    raise SpecError(f"provider {text!r}: two children are the same place: {key}; give each its own")
                keys.add(key)
    return resolved


@contextmanager
def _hidden_secrets(text: str) -> Iterator[None]:
    """Learn the secrets in a spec, and remove them from errors about it."""
    redact.learn_named(text)
    try:
        yield
    except UsageError as error:
        redact.clean_error(error)
        raise


def _resolve_part(spec: ProviderSpec, number: str, accounts: Counter[str]) -> ResolvedSpec:
    if number.count(".") >= _DEEPEST:
        raise SpecError(f"provider {spec.text!r}: providers are nested more than {_DEEPEST} deep")
    stand_in = find_stand_in(spec)
    if stand_in is not None:
        return ResolvedSpec(spec, _bind_to_stand_in(spec, stand_in), number, stand_in=stand_in)
    bound = drivers.bind(spec)
    if issubclass(bound.driver, Composite):
        return _resolve_composite(bound, bound.driver, number, accounts)
    bound, account = split_number(bound, is_child=bool(number))
    if "token_env" not in spec.params:
        accounts[bound.owner] += 1
    return ResolvedSpec(spec, bound, number, account=account or max(1, accounts[bound.owner]))


def _resolve_composite(bound: BoundSpec, driver: type[Composite], number: str, accounts: Counter[str]) -> ResolvedSpec:
    spec = bound.spec
    described = driver.described(spec) if issubclass(driver, Described) else None
    named = _named_children(spec) if described is None else tuple(map(ProviderSpec.parse, described))
    driver.check_children(spec, named)
    prefix = f"{number}." if number else ""
    children = [_resolve_part(child, f"{prefix}{index}", accounts) for index, child in enumerate(named, 1)]
    for child in children if described else ():  # the file must mean the same from every folder
        if ProviderSpec.parse(absolute := child.absolute()).target != child.spec.target:
            expected = f"{child.spec.text!r} depends on the current folder: write {absolute!r}"
            raise ConfigError(spec.target, "children", expected)
    return ResolvedSpec(spec, bound, number, children=tuple(children))


def _bind_to_stand_in(spec: ProviderSpec, stand_in: StandIn) -> BoundSpec:
    """Return the driver that speaks to a stand-in, with the spec that it reads.

    The user's parameter ``driver`` names another driver that speaks the API. Parameters that are not for the stand-in
    are the driver's.
    """
    params = {name: value for name, value in spec.params.items() if name not in ("profile", "driver")}
    if "profile" in spec.params and not spec.is_emulated:
        raise SpecError(f"provider {spec.text!r}: unknown parameter 'profile'; only emulators have profiles")
    scheme, api = stand_in.driver, stand_in.api
    if scheme == spec.params.get("driver", scheme):
        params = {**stand_in.params, **params}
    if "driver" in spec.params:
        scheme = spec.params["driver"].lower().replace(" ", "+")  # a plus sign in a query stands for a space
    bound = drivers.bind(ProviderSpec.parse(_format_spec(scheme, stand_in.target, params)))
    if "driver" in spec.params and api not in getattr(bound.driver, "apis", ()) and scheme != api:
        raise SpecError(f"provider {spec.text!r}: the driver {scheme} does not speak {api}")
    if stand_in.missing:
        raise SpecError(f"provider {spec.text!r}: {stand_in.missing}")
    return bound


def _format_spec(scheme: str, target: str, params: Mapping[str, str]) -> str:
    return scheme + (f":{target}" if target else "") + (f"?{urlencode(params)}" if params else "")


def _named_children(spec: ProviderSpec) -> tuple[ProviderSpec, ...]:
    """Return the children of a composite, which are listed in its spec or in the TOML file that the spec names."""
    if not spec.target.endswith(".toml") or "," in spec.target or ":" in spec.target:
        return spec.children()
    from pytest_cloudbench.support import opening

    table = opening.read_toml(spec.target, expected := 'children = ["SPEC", ...] and nothing else')
    children, others = table.get("children"), [ascii(key)[1:-1] for key in table if key != "children"]
    is_list = isinstance(children, list) and children and all(isinstance(child, str) for child in children)
    if not is_list or others:
        raise ConfigError(spec.target, others[0] if is_list else "children", f"expected {expected}")
    return tuple(ProviderSpec.parse(child) for child in children or ())


def check(text: str, time_scale: float) -> None:
    """Check a provider before anything starts. Calls the network only to renew a token. Raises UsageError."""
    resolved = resolve(text)
    with _hidden_secrets(text):
        resolved.check_time_scale(time_scale)
        for leaf in resolved.leaves():
            if leaf.stand_in is None:
                leaf.bound.connect(None, load_credentials(leaf.bound, leaf.account), is_part=bool(leaf.number)).close()


# --- the controller's half ----------------------------------------------------------------------------


class Providers:
    """All providers of a run, and their services. A service starts when an agent first asks for its provider.

    Args:
        seed: the run's seed, from which emulators draw their random numbers.
        time_scale: the speed of the emulators' clocks, as a multiple of real time.
        patience_s: the longest silence of an agent. A silent service is reported sooner.
        logs: the folder for the output of services. None keeps the output for messages only.
        allow: called with the specs of a provider's real accounts before it is used. Raises UsageError to refuse.
        serve_at: the address at which emulators listen, by default only for this machine.
        adapt: called with an agent's name and a spec. Returns what that agent needs to connect from its host.
    """

    def __init__(
        self, seed: str, *, time_scale: float = 1.0, patience_s: float = 4 * _MOST_SILENT_S, logs: Path | None = None,
        allow: Callable[[Sequence[str]], object] = lambda accounts: None, serve_at: str = "",
        adapt: Callable[[str, str, Provided], Provided] = lambda agent, text, provided: provided,
    ) -> None:  # fmt: skip
        self._settings = ServiceSettings(seed, time_scale, serve_at or "127.0.0.1", logs)
        self._adapt = adapt
        self._silent_s = min(_MOST_SILENT_S, patience_s / 4)
        self._allow = allow
        self._lock = threading.Lock()
        self._provided: dict[str, Provided] = {}
        self._services: dict[str, list[tuple[str, Service]]] = {}
        self._states: list[str] = []

    def provide(self, agent: str, text: str) -> Provided:
        """Prepare a provider, once. Returns what an agent needs to connect. Raises UsageError and ServiceError."""
        with self._lock:
            if text not in self._provided:
                self._prepare(text)
        return self._adapt(agent, text, self._provided[text])

    def accounts(self, text: str) -> Sequence[tuple[str, Mapping[Verb, int]]]:
        """Return each real account that a provider uses, with the requests that its verbs send.

        There are none for a driver that only a test project has. Raises UsageError.
        """
        if not drivers.has_driver(scheme := ProviderSpec.parse(text).scheme) and scheme not in SERVICE_SCHEMES:
            return []
        return resolve(text).accounts()

    def find_provided(self, text: str) -> Provided | None:
        """Return what agents of this machine were given for a provider, or None if none has asked for it."""
        return self._provided.get(text)

    def digest(self, text: str) -> str | None:
        """Return a digest of what decides how a provider's services behave, or None if that is unknown."""
        provided = self._provided.get(text)
        return provided.digest if provided else None

    def services(self, text: str) -> list[Service]:
        """Return a provider's services. A provider elsewhere has none."""
        return [service for _, service in self._services.get(text, ())]

    def reset(self, text: str) -> None:
        """Empty the accounts of a provider's services. Raises ServiceError."""
        for _, service in self._services.get(text, ()):
            service.reset()

    def refill(self, text: str) -> None:
        """Restore what an experiment may use up in a provider's services. Raises ServiceError."""
        for _, service in self._services.get(text, ()):
            service.refill()

    def faults(self, text: str, are_on: bool) -> None:
        """Switch the faults of a provider's services on (while operations are measured) or off. Raises ServiceError."""
        from pytest_cloudbench.services import MakesFaults

        for _, service in self._services.get(text, ()):
            if isinstance(service, MakesFaults) and service.alive():
                service.faults(are_on)

    def died(self, text: str) -> str:
        """Describe which of a provider's services has died, and why. Empty if none has."""
        dead = [
            f"the {service.kind} of {name} died ({service.exit_reason()})"
            for name, service in self._services.get(text, ()) if not service.alive()
        ]  # fmt: skip
        return "; ".join(dead)

    def own_servers(self, text: str) -> str:
        """Name the servers of a provider that this package has chosen (``local:``), and not the user.

        They are not the subject of a test. An emulator fails on purpose, and the server of a user's recipe is what the
        user wants to know about.
        """
        names = [name for name, _ in self._services.get(text, ()) if name.startswith(f"{LOCAL}:")]
        return " and ".join(f"the server of {name}" for name in names)

    def close(self) -> None:
        """Stop all services. Raises ServiceError if one had died before."""
        services = [service for services in self._services.values() for service in services]
        dead: dict[str, list[str]] = {}
        for name, service in services:
            if not service.alive():
                dead.setdefault(service.kind, []).append(f"{name} ({service.exit_reason()})")
        for _, service in services:
            service.stop()
        self._services.clear()
        for folder in self._states:
            shutil.rmtree(folder, ignore_errors=True)
        self._states.clear()
        if dead:
            raise ServiceError("; ".join(f"the {kind} died: {', '.join(names)}" for kind, names in dead.items()))

    def _prepare(self, text: str) -> None:
        """Check a provider, and start all services that it needs, or none."""
        resolved, started = resolve(text), list[tuple[str, "Service"]]()
        resolved.check_time_scale(self._settings.time_scale)
        for leaf in resolved.leaves():
            if leaf.stand_in is None:
                load_credentials(leaf.bound, leaf.account)
        if accounts := resolved.accounts():
            self._allow([spec for spec, _ in accounts])
        try:
            self._provided[text] = self._open(resolved, text, started)
        except BaseException:
            for _, service in started:
                service.stop()
            raise
        self._services[text] = started

    def _open(self, part: ResolvedSpec, text: str, started: list[tuple[str, Service]]) -> Provided:
        """Start the services of a part of the provider that ``text`` names, and append them to ``started``."""
        spec = part.bound.spec.text
        if part.children:
            return self._compose(part.bound, [self._open(child, text, started) for child in part.children])
        stand_in = part.stand_in
        if stand_in is None:
            return Provided(spec, account=part.account)
        service = stand_in.make(self._settings, f"-{part.number}" if part.number else "")
        endpoint = service.start()
        started.append((part.spec.text + (f" (child {part.number} of {text})" if part.number else ""), service))
        service.watch(self._silent_s)
        emulated = "none" if stand_in.profile is None else "all"
        return Provided(
            spec, endpoint, profile=stand_in.profile, digest=stand_in.digest, emulated=emulated, is_kept=False
        )

    def _compose(self, bound: BoundSpec, children: Sequence[Provided]) -> Provided:
        """Derive the facts about a composite provider from those about its children."""
        spec = bound.spec
        kinds, digests = {child.emulated for child in children}, [child.digest for child in children]
        digest = None if None in digests else short_digest(repr(digests))
        emulated = kinds.pop() if len(kinds) == 1 else "some"
        is_kept = any(child.is_kept for child in children)
        text = spec.text
        if not is_kept and "state" not in spec.params and issubclass(bound.driver, Described):
            self._states.append(str(make_private_folder("cloudbench-state-")))
            text = _format_spec(spec.scheme, spec.target, {**spec.params, "state": self._states[-1]})
        return Provided(text, digest=digest, emulated=emulated, is_kept=is_kept, children=tuple(children))


@contextmanager
def provided(text: str) -> Iterator[Provider]:
    """Open a provider outside a run, with its own services if it needs any. Raises UsageError."""
    providers = Providers("outside a run")
    try:
        provider = find_provider(text, lambda _what, name: providers.provide("", name).plain())
        try:
            yield provider
        finally:
            provider.close()
    finally:
        with suppress(ServiceError):  # whoever needed the service has reported its death
            providers.close()


@contextmanager
def opened(text: str) -> Iterator[Driver]:
    """Connect to a provider outside a run, with its own services if it needs any. Raises UsageError."""
    with provided(text) as provider:
        yield provider.driver
