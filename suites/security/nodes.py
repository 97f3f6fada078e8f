"""What survives the loss of storage nodes? (thesis, section 2.3) The nodes of an array are killed, one after the other.

The array is a copy of the one under test: of the same file, with services of its own in place of its children, so that
nothing else loses its nodes. Each node is a process, which is really ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from pytest_cloudbench import (
    CommandService,
    EmulatorService,
    Inquiry,
    LiteralContent,
    Provider,
    ProviderSpec,
    RaidDriver,
    RandomContent,
    connect_driver,
    find_profile,
    load_recipe,
    note_all_missing,
    repair_array,
)

from .grid import SCHEME, ask_grid, can_read, can_write, describe_access, is_grid
from .rulings import Ruling, no, unknown, yes

_BYTES = 300_000


@dataclass(slots=True)
class Nodes:
    """The services of an array's copy, in the order of its children."""

    services: list[EmulatorService | CommandService]
    specs: list[ProviderSpec]

    @classmethod
    def start(cls, children: Sequence[str], stack: ExitStack) -> Nodes:
        """Start a service for each child. Raises ServiceError and UsageError."""
        nodes = cls([], [])
        for child in children:
            service, spec = _start_node(ProviderSpec.parse(child), stack)
            nodes.services.append(service)
            nodes.specs.append(spec)
        return nodes

    def replace(self, number: int, child: str, stack: ExitStack) -> None:
        """Start a new, empty node in place of node ``number``."""
        self.services[number], self.specs[number] = _start_node(ProviderSpec.parse(child), stack)

    def connect(self) -> list[Any]:
        """Return a driver for each node."""
        pairs = zip(self.specs, self.services, strict=True)
        return [connect_driver(spec, service.endpoint) for spec, service in pairs]


def _start_node(child: ProviderSpec, stack: ExitStack) -> tuple[EmulatorService | CommandService, ProviderSpec]:
    if child.is_emulated:
        profile = find_profile(child.target)
        service: EmulatorService | CommandService = EmulatorService(child.target)
        text = profile.meta.api
    else:
        recipe = load_recipe(child.target)
        service = CommandService(recipe)
        params = "&".join(f"{name}={value}" for name, value in recipe.params.items())
        text = f"{recipe.driver}:{recipe.target}" + (f"?{params}" if params else "")
    stack.callback(service.stop)
    service.start()
    if isinstance(service, EmulatorService):
        service.faults(False)
    return service, ProviderSpec.parse(text)


def shows_nodes(provider: Provider) -> bool:
    """Return whether a provider is made of nodes whose loss can be asked about."""
    return isinstance(provider.driver, RaidDriver) or provider.opened[1].bind().spec.scheme == SCHEME


def why_no_nodes(inquiry: Inquiry) -> str:
    """Return why a provider has no nodes that can be killed here. Empty if it has."""
    if not isinstance(inquiry.provider.driver, RaidDriver):
        return "it shows no nodes"
    children = RaidDriver.described(inquiry.bound.spec)
    schemes = {ProviderSpec.parse(child).scheme for child in children}
    return "" if schemes <= {"emulated", "local"} else f"only nodes that a run starts are killed, not {min(schemes)}"


@contextmanager
def open_copy(target: str, nodes: Nodes, state: str) -> Iterator[RaidDriver]:
    """Open an array of a file with other nodes in place of its children."""
    driver = RaidDriver.compose(ProviderSpec.parse(f"raid:{target}?state={state}"), nodes.connect())
    try:
        yield driver
    finally:
        driver.close()


def ask_nodes(inquiry: Inquiry) -> Ruling:
    """Answer whether an array or a grid keeps its promises about reads, writes and repair when nodes are killed."""
    if is_grid(inquiry):
        return ask_grid(inquiry)
    if why := why_no_nodes(inquiry):
        return unknown(why)
    return try_losses(inquiry.bound.spec)


def try_losses(spec: ProviderSpec) -> Ruling:
    """Kill nodes of a copy of an array, repair it, and kill others."""
    children = RaidDriver.described(spec)
    with ExitStack() as stack:
        state = stack.enter_context(TemporaryDirectory(prefix="cloudbench-nodes-"))
        nodes, evidence = Nodes.start(children, stack), list[str]()
        content = RandomContent(spec.text, _BYTES).read(0, _BYTES)
        with open_copy(spec.target, nodes, state) as array:
            needed, count = array.array.file.k, len(children)
            spare = count - needed
            array.put("/kept", LiteralContent(content))
            for lost in range(1, spare + 1):
                nodes.services[lost - 1].stop()
                is_read = can_read(array, "/kept", content)
                is_written = can_write(array, "/new", LiteralContent(content))
                evidence.append(f"{lost} of {count} nodes killed: {describe_access(is_read, is_written)}")
                if not is_read:
                    return no(f"with {lost} of {count} nodes killed it cannot be read; it promises {spare}", evidence)
        for number in range(spare):
            nodes.replace(number, children[number], stack)
        with open_copy(spec.target, nodes, state) as array:
            for number in range(spare):
                note_all_missing(array.array, number)  # as ``cloudbench raid replace`` does
            repaired_all = repair_array(array.array).is_complete
            evidence.append(f"{spare} new nodes: {'repaired' if repaired_all else 'not repaired'}")
            for number in range(needed, count):
                nodes.services[number].stop()
            is_repaired_read = can_read(array, "/kept", content)
            evidence.append(f"repaired, then {spare} others killed: {'read' if is_repaired_read else 'not read'}")
            nodes.services[0].stop()  # one more than it promises
            is_read_beyond = can_read(array, "/kept", content)
            evidence.append(f"{spare + 1} nodes killed: {'read' if is_read_beyond else 'not read'}")
    if not is_repaired_read:
        return no(f"it survives {spare} of {count} nodes, but is not whole after a repair", evidence)
    if is_read_beyond:
        return unknown(f"read with {spare + 1} of {count} nodes killed, so nothing follows from what is read", evidence)
    if not spare:
        return no(f"not read with 1 of {count} nodes killed; it promises to survive none", evidence)
    return yes(f"read with {spare} of {count} nodes killed, and after a repair with {spare} others", evidence)
