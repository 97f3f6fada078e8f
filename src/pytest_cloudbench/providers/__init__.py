"""The one way from ``--provider`` to a driver: spec -> service (emulator, real server, none) -> driver, also for trees.

What may live here: what a spec means, the services of a run, connecting a driver, and the value behind the ``provider``
fixture. Credentials, profiles, recipes and endpoints are loaded here and nowhere else. The controller checks a provider
and starts its services (``Providers``); an agent connects to what the controller gave it (``connect``). Fifty agents
import this module, so functions import what only the controller needs.
"""

from __future__ import annotations

import gc
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pytest_cloudbench.drivers.base import Composite, Described, Driver
from pytest_cloudbench.fleet.run import slug
from pytest_cloudbench.model import ConfigError, Endpoint, ProviderSpec, ServiceError, SpecError, UsageError, Verb
from pytest_cloudbench.providers.for_agents import Provided
from pytest_cloudbench.results import journal
from pytest_cloudbench.results.owner import make_private_folder
from pytest_cloudbench.results.places import make_results_folder

if TYPE_CHECKING:
    from pytest_cloudbench.emulators.profile import Profile
    from pytest_cloudbench.services import Service
    from pytest_cloudbench.services.command import Recipe

_SERVED, _LOCAL = "served", "local"
_OF_SERVICES = frozenset({"emulated", _SERVED, _LOCAL})
_DEEPEST = 8
_MOST_SILENT_S = 30.0
"""A service that is silent for this long is reported before agents are."""


# --- an agent's half ----------------------------------------------------------------------------------


def connect(provided: Provided, *, is_part: bool = False) -> Driver:
    """Connect this process to a provider, or to a part of an array. Raises SpecError and CredentialsError."""
    from pytest_cloudbench import drivers

    spec = ProviderSpec.parse(provided.spec)
    if not provided.children:
        credentials = {} if provided.endpoint else credentials_of(spec, provided.account)
        return drivers.connect(spec, provided.endpoint, credentials, is_part=is_part)
    with ExitStack() as stack:
        children = []
        for child in provided.children:
            children.append(connect(child, is_part=True))
            stack.callback(children[-1].close)
        driver = drivers.compose(spec, children)
        stack.pop_all()  # from here on they are the composite's to close
    return driver


def credentials_of(spec: ProviderSpec, account: int = 1) -> Mapping[str, str]:
    """Returns the credentials of a provider by its driver's field names. Raises CredentialsError.

    A field that is no secret, such as an account's name, may be in the spec instead.
    """
    from pytest_cloudbench import drivers
    from pytest_cloudbench.providers import renewal

    public = {
        name for each in getattr(drivers.driver_class(spec.scheme), "credential_sets", ()) for name in each.public
    }
    said = {name: value for name, value in spec.params.items() if name in public}
    return renewal.load(spec.scheme, spec.params.get("token_env"), account, said)


class Provider:
    """A storage service under test, as the ``provider`` fixture gives it.

    Args:
        spec: what the user named.
        driver: the connected driver, safe to use from many threads.
        profile: the emulator's behaviour profile, or None for a real service.
        open: in place of the two above, returns the driver and what is known about the provider at first use.
    """

    has_answered = False
    """Whether it has ever confirmed that a run's folder exists."""

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
        """The connected driver, and what is known about the provider. Connects at first use."""
        if self._open is None:
            raise UsageError(f"provider {self.spec}: has neither a driver nor a way to connect one")
        opened = self._open()
        gc.freeze()  # what connecting imported stays for good: fifty agents need not collect it again and again
        return opened

    @property
    def driver(self) -> Driver:
        """The connected driver."""
        return self.opened[0]

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the service that stands in for it listens, if there is one."""
        return self.opened[1].endpoint

    @property
    def addresses(self) -> tuple[tuple[str, int], ...] | None:
        """Where services that stand in for it listen: empty if there are none, None if only parts of it have some."""
        return self.opened[1].addresses

    @property
    def profile(self) -> str | None:
        """The emulator's behaviour profile, or None for a real service."""
        return self.opened[1].profile

    def close(self) -> None:
        """Close the driver's connections, if there are any."""
        if "opened" in vars(self):
            self.driver.close()

    @property
    def is_kept(self) -> bool:
        """Whether what is written outlives the run. If so, it is journaled, and the run is announced."""
        return self.opened[1].is_kept

    @property
    def emulated(self) -> str:
        """How many of its parts are emulated: ``all``, ``some`` or ``none``."""
        return self.opened[1].emulated

    @property
    def has_services(self) -> bool:
        """Whether the run owns services of this provider, which it can reset and which may inject faults."""
        return self.opened[1].has_services

    def claim(self, folder: str, owner: str) -> None:
        """Before a run writes into ``folder``, record the run's folder above it in the journal, and mark it as a run's.

        While ``owner``, the run's process, lives, no other process removes it. Raises CloudError and ResultsError.
        """
        if place := self._place:
            journal.claim_folder(self.driver, place, folder.rpartition("/")[0], owner)

    def release(self, folder: str) -> None:
        """After ``folder`` was removed, remove the run's folder above it if that is now empty. Raises CloudError."""
        if place := self._place:
            journal.release_folder(self.driver, place, folder.rpartition("/")[0])

    @property
    def _place(self) -> str:
        """The spec by which ``cloudbench clean`` finds it from elsewhere; empty if only this project has its driver."""
        from pytest_cloudbench import drivers

        is_known = drivers.has_driver(ProviderSpec.parse(self.spec).scheme)
        return _absolute(_read(self.spec)) if is_known else ""


def find_provider(text: str, ask: Callable[[str, str], Any]) -> Provider:
    """Returns a provider that this agent connects to at first use; ``ask`` asks the controller for it by name."""

    def open_it() -> tuple[Driver, Provided]:
        provided = Provided.from_plain(ask("provide", text))
        return connect(provided), provided

    return Provider(text, open=open_it)


# --- what a spec means --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One parsed spec of a tree.

    ``spec`` is the user's, and ``driven`` is what the driver reads. ``place`` is its number in the tree, such as 2.1.
    ``profile_name`` is what an emulator's process finds its profile by.
    """

    spec: ProviderSpec
    driven: ProviderSpec
    place: str
    account: int = 1
    profile: Profile | None = None
    profile_name: str = ""
    recipe: Recipe | None = None
    children: tuple[_Part, ...] = ()

    def leaves(self) -> Iterator[_Part]:
        """Returns the parts that are not composite."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    @property
    def has_service(self) -> bool:
        return self.profile is not None or self.recipe is not None


def _read(text: str) -> _Part:
    """Parse a spec, and find its drivers, profiles and recipes. Raises UsageError in one line."""
    part = _part(ProviderSpec.parse(text), "", Counter())
    seen: set[str] = set()
    for leaf in part.leaves() if part.children else ():
        if key := _own_place(leaf):
            if key in seen:
                raise SpecError(f"provider {text!r}: two children are the same place: {key}; give each its own")
            seen.add(key)
    return part


def _own_place(leaf: _Part) -> str:
    """Returns a key that no other child may share; empty if each child has an account of its own."""
    from pytest_cloudbench import drivers

    spec = leaf.driven
    if leaf.has_service:
        return ""
    if getattr(drivers.driver_class(spec.scheme), "credential_sets", ()):
        owner = drivers.credentials_of(spec.scheme)
        return f"{owner}?token_env={spec.params['token_env']}" if "token_env" in spec.params else ""
    return drivers.absolute(spec).partition("?")[0]


def _part(spec: ProviderSpec, place: str, accounts: Counter[str]) -> _Part:
    from pytest_cloudbench import drivers

    if place.count(".") >= _DEEPEST:
        raise SpecError(f"provider {spec.text!r}: providers are nested more than {_DEEPEST} deep")
    if spec.is_emulated:
        from pytest_cloudbench.emulators.profile import find_profile, full_name

        wanted = spec.params.get("profile")
        profile = find_profile(spec.target) if wanted is None else find_profile(wanted, spec.target)
        name = spec.target if wanted is None else full_name(wanted, spec.target)
        api = profile.meta.api
        return _Part(spec, _driven(spec, api, api), place, profile=profile, profile_name=name)
    if spec.scheme in (_SERVED, _LOCAL):
        return _server(spec, place)
    driver = drivers.driver_class(spec.scheme)
    if issubclass(driver, Composite):
        described = driver.described(spec) if issubclass(driver, Described) else None
        named = _named_children(spec) if described is None else tuple(map(ProviderSpec.parse, described))
        driver.check_children(spec, named)
        begin = f"{place}." if place else ""
        parts = [_part(child, f"{begin}{number}", accounts) for number, child in enumerate(named, 1)]
        for child in parts if described else ():  # whose file means the same from every folder
            if ProviderSpec.parse(whole := _absolute(child)).target != child.spec.target:
                expected = f"{child.spec.text!r} depends on the current folder: write {whole!r}"
                raise ConfigError(spec.target, "children", expected)
        return _Part(spec, spec, place, children=tuple(parts))
    owner = drivers.credentials_of(spec.scheme)
    if "token_env" not in spec.params:
        accounts[owner] += 1
    return _Part(spec, spec, place, account=max(1, accounts[owner]))


def _server(spec: ProviderSpec, place: str) -> _Part:
    from pytest_cloudbench.services.command import load_recipe, recipe_names

    is_file = spec.target.endswith(".toml") or "/" in spec.target
    if not spec.target or is_file != (spec.scheme == _SERVED):
        known = f"{_LOCAL}:NAME, NAME being one of {', '.join(recipe_names())}"
        expected = known if spec.scheme == _LOCAL else f"{_SERVED}:RECIPE.toml"
        raise SpecError(f"provider {spec.text!r}: expected {expected}")
    recipe = load_recipe(spec.target)
    driven = _driven(spec, recipe.driver, recipe.api, recipe.target, recipe.params)
    if told := recipe.absent():
        raise SpecError(f"provider {spec.text!r}: {told}")
    return _Part(spec, driven, place, recipe=recipe)


def _driven(
    spec: ProviderSpec, driver: str, api: str, target: str = "", params: Mapping[str, str] = MappingProxyType({})
) -> ProviderSpec:
    """Returns what the driver reads if a service stands in for its provider.

    ``driver`` among the parameters names another driver that speaks the API; those that are not for the service are
    the driver's.
    """
    from pytest_cloudbench import drivers

    rest = {name: value for name, value in spec.params.items() if name not in ("profile", "driver")}
    if "profile" in spec.params and not spec.is_emulated:
        raise SpecError(f"provider {spec.text!r}: unknown parameter 'profile'; only emulators have profiles")
    if driver == spec.params.get("driver", driver):
        rest = {**params, **rest}
    if "driver" in spec.params:
        driver = spec.params["driver"].lower().replace(" ", "+")  # which a plus sign in a query stands for
        if api not in getattr(drivers.driver_class(driver), "apis", ()) and driver != api:
            raise SpecError(f"provider {spec.text!r}: the driver {driver} does not speak {api}")
    drivers.driver_class(driver)
    return ProviderSpec.parse(_spelled(driver, target, rest))


def _spelled(scheme: str, target: str, params: Mapping[str, str]) -> str:
    return scheme + (f":{target}" if target else "") + (f"?{urlencode(params)}" if params else "")


def _named_children(spec: ProviderSpec) -> tuple[ProviderSpec, ...]:
    """Returns the children of a composite: those in the spec, or in the TOML file that the spec names."""
    if not spec.target.endswith(".toml") or "," in spec.target or ":" in spec.target:
        return spec.children()
    from pytest_cloudbench.support import opening

    table = opening.read_toml(spec.target, expected := 'children = ["SPEC", ...] and nothing else')
    children, others = table.get("children"), [ascii(key)[1:-1] for key in table if key != "children"]
    is_list = isinstance(children, list) and children and all(isinstance(each, str) for each in children)
    if not is_list or others:
        raise ConfigError(spec.target, others[0] if is_list else "children", f"expected {expected}")
    return tuple(ProviderSpec.parse(child) for child in children or ())


def _absolute(part: _Part) -> str:
    """Returns the spec in a form that means the same from every folder."""
    from pytest_cloudbench import drivers

    spec = part.spec
    if part.has_service:
        is_file = "/" in spec.target or spec.target.endswith(".toml")
        _, mark, params = spec.text.partition("?")
        return f"{spec.scheme}:{Path(spec.target).resolve()}{mark}{params}" if is_file else spec.text
    if not part.children:
        return drivers.absolute(spec)
    if issubclass(drivers.driver_class(spec.scheme), Described):
        state = {name: str(Path(folder).resolve()) for name, folder in spec.params.items()}  # it has no other parameter
        is_file = spec.target.endswith(".toml")  # and no name of one that ships
        return _spelled(spec.scheme, str(Path(spec.target).resolve()) if is_file else spec.target, state)
    _, mark, params = spec.text.removeprefix(f"{spec.text.partition(':')[0]}:{spec.target}").partition("?")
    children = ",".join(f"({_absolute(child)})" for child in part.children)
    return f"{spec.scheme}:{children}{mark}{params}"


def check_name(text: str) -> None:
    """Check that there is such a provider, without looking for credentials. Raises UsageError in one line."""
    _read(text)


def check(text: str, time_scale: float) -> None:
    """Check a provider before anything starts; no network call but to renew a token. Raises UsageError."""
    part = _read(text)
    _check_time_scale(part, text, time_scale)
    for leaf in part.leaves():
        if not leaf.has_service:
            connect(Provided(leaf.driven.text, account=leaf.account)).close()


def _check_time_scale(part: _Part, text: str, time_scale: float) -> None:
    if time_scale != 1.0 and not all(leaf.spec.is_emulated for leaf in part.leaves()):
        raise UsageError(
            f"--time-scale {time_scale:g} needs an emulated provider: {text} runs in real time; leave the option out"
        )


# --- the controller's half ----------------------------------------------------------------------------


class Providers:
    """All providers of a run, and their services. A service starts when an agent first asks for its provider.

    Args:
        seed: the run's seed; emulators draw their random numbers from it.
        time_scale: how many times faster than real time the emulators' clocks run.
        patience_s: how long an agent may be silent. A silent service is reported sooner.
        logs: the folder for the output of services; None keeps the output for messages only.
        allow: is told the specs of a provider's real accounts before it is used; raises UsageError if it may not be.
    """

    def __init__(
        self, seed: str, *, time_scale: float = 1.0, patience_s: float = 4 * _MOST_SILENT_S, logs: Path | None = None,
        allow: Callable[[Sequence[str]], object] = lambda accounts: None,
    ) -> None:  # fmt: skip
        self._seed, self._time_scale, self._logs = seed, time_scale, logs
        self._silent_s = min(_MOST_SILENT_S, patience_s / 4)
        self._allow = allow
        self._lock = threading.Lock()
        self._provided: dict[str, Provided] = {}
        self._services: dict[str, list[tuple[str, Service]]] = {}
        self._states: list[str] = []

    def provide(self, agent: str, text: str) -> Provided:
        """Returns what any agent needs to connect; prepared only once. Raises UsageError and ServiceError."""
        with self._lock:
            if text not in self._provided:
                self._prepare(text)
            return self._provided[text]

    def accounts(self, text: str) -> Sequence[tuple[str, Mapping[Verb, int]]]:
        """Returns each real account that a provider uses: its spec, and the requests that its verbs send.

        There are none for a driver that only a test project has. Raises UsageError.
        """
        from pytest_cloudbench import drivers

        found: list[tuple[str, Mapping[Verb, int]]] = []
        if not drivers.has_driver(scheme := ProviderSpec.parse(text).scheme) and scheme not in _OF_SERVICES:
            return found
        for leaf in _read(text).leaves():
            driver: Any = drivers.driver_class(leaf.driven.scheme)
            needs: Any = getattr(driver, "credential_sets", ())
            if needs and not leaf.has_service:
                found.append((leaf.driven.text, dict(getattr(driver.capabilities, "requests", {}))))
        return found

    def digest(self, text: str) -> str | None:
        """Returns a digest of what decides how a provider's services behave; None if that is not known."""
        provided = self._provided.get(text)
        return provided.digest if provided else None

    def pids(self, text: str) -> list[int]:
        """Returns the process ids of a provider's services; none if it runs elsewhere."""
        from pytest_cloudbench.services.child import ChildService

        services = [service for _, service in self._services.get(text, ())]
        return [service.child.pid for service in services if isinstance(service, ChildService)]

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
        """Returns which of a provider's services has died, and why; empty if none has."""
        dead = [
            f"the {service.kind} of {name} died ({service.exit_reason()})"
            for name, service in self._services.get(text, ()) if not service.alive()
        ]  # fmt: skip
        return "; ".join(dead)

    def own_servers(self, text: str) -> str:
        """Returns which servers run for a provider that this package has chosen (``local:``), not the user.

        It is not they who are tested. An emulator fails as it is told to, and the server of a user's recipe is what the
        user wants to know about.
        """
        names = [name for name, _ in self._services.get(text, ()) if name.startswith(f"{_LOCAL}:")]
        return " and ".join(f"the server of {name}" for name in names)

    def close(self) -> None:
        """Stop all services. Raises ServiceError if one had died before."""
        services = [each for all_of_one in self._services.values() for each in all_of_one]
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
            raise ServiceError("; ".join(f"the {kind} died: {', '.join(each)}" for kind, each in dead.items()))

    def _prepare(self, text: str) -> None:
        """Check a provider, and start all services that it needs, or none."""
        part, started = _read(text), list[tuple[str, "Service"]]()
        _check_time_scale(part, text, self._time_scale)
        for leaf in part.leaves():
            if not leaf.has_service:
                credentials_of(leaf.driven, leaf.account)
        if accounts := self.accounts(text):
            self._allow([spec for spec, _ in accounts])
        try:
            self._provided[text] = self._open(part, text, started)
        except BaseException:
            for _, service in started:
                service.stop()
            raise
        self._services[text] = started

    def _open(self, part: _Part, text: str, started: list[tuple[str, Service]]) -> Provided:
        if part.children:
            return self._composed(part.driven, [self._open(child, text, started) for child in part.children])
        if not part.has_service:
            return Provided(part.driven.text, account=part.account)
        service = self._make(part)
        endpoint = service.start()
        started.append((part.spec.text + (f" (child {part.place} of {text})" if part.place else ""), service))
        service.watch(self._silent_s)
        digest = _digest_of(part)
        if part.profile is None:
            return Provided(part.driven.text, endpoint, digest=digest, is_kept=False)
        name = part.profile.meta.name
        return Provided(part.driven.text, endpoint, profile=name, digest=digest, emulated="all", is_kept=False)

    def _composed(self, spec: ProviderSpec, children: Sequence[Provided]) -> Provided:
        """Derives what is known about a composite provider from its children."""
        from pytest_cloudbench import drivers

        kinds, digests = {child.emulated for child in children}, [child.digest for child in children]
        digest = None if None in digests else _short(repr(digests))
        emulated = kinds.pop() if len(kinds) == 1 else "some"
        is_kept = any(child.is_kept for child in children)
        if not is_kept and "state" not in spec.params and issubclass(drivers.driver_class(spec.scheme), Described):
            self._states.append(str(make_private_folder("cloudbench-state-")))
            spec = ProviderSpec.parse(_spelled(spec.scheme, spec.target, {**spec.params, "state": self._states[-1]}))
        return Provided(spec.text, digest=digest, emulated=emulated, is_kept=is_kept, children=tuple(children))

    def _make(self, part: _Part) -> Service:
        child = f"-{part.place}" if part.place else ""
        if part.recipe is not None:
            from pytest_cloudbench.services.command import CommandService

            return CommandService(part.recipe, log_path=self._log(f"server-{slug(part.recipe.name)}{child}.log"))
        from pytest_cloudbench.emulators import EmulatorService

        # The run's own draws: with --cloudbench-seed the same ones again. Equal children draw differently.
        drawn = sha256(f"{self._seed}/{part.profile_name}{child}".encode()).digest()
        return EmulatorService(
            part.profile_name, time_scale=self._time_scale, seed=int.from_bytes(drawn[:6], "big"),
            log_path=self._log(f"emulator-{slug(part.profile_name)}{child}.log"),
        )  # fmt: skip

    def _log(self, name: str) -> Path | None:
        if self._logs is None:
            return None
        make_results_folder(self._logs)
        return self._logs / name


def _digest_of(part: _Part) -> str:
    """Returns a digest of what decides how a service behaves. Entries of runs are compared only if it is the same."""
    if part.profile is not None:
        from pytest_cloudbench.emulators.profile import profile_digest

        return profile_digest(part.profile)
    recipe = part.recipe
    assert recipe is not None
    return _short(repr((recipe.driver, recipe.command, sorted(recipe.environment.items()))))


def _short(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


@contextmanager
def provided(text: str) -> Iterator[Provider]:
    """Yields a provider outside a run, with its own services if it needs any. Raises UsageError."""
    providers = Providers("outside a run")
    try:
        provider = find_provider(text, lambda _what, name: providers.provide("", name).plain())
        try:
            yield provider
        finally:
            provider.close()
    finally:
        with suppress(ServiceError):  # whatever needed it has said so
            providers.close()


@contextmanager
def opened(text: str) -> Iterator[Driver]:
    """Yields a connected provider outside a run, with its own services if it needs any. Raises UsageError."""
    with provided(text) as provider:
        yield provider.driver
