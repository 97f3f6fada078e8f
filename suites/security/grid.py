"""What survives the loss of a grid's servers? (thesis, section 2.3: N, H and K) They are killed, one after the other.

The grid is one of the suite's own, so that the one under test loses nothing. A file is N shares on as many servers. Any
K of them restore it, and a write has to reach H servers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cloudbench import (
    CloudError,
    CommandService,
    Inquiry,
    LiteralContent,
    ProviderSpec,
    RandomContent,
    connect_driver,
    load_recipe,
    wait_for,
)

from .rulings import Ruling, no, unknown, yes

SCHEME = "tahoe"
_NEEDED, _HAPPY, _TOTAL = 2, 3, 4
"""K, H and N. H is between the others, so that each further loss has another effect."""
_BYTES = 300_000
_NOTICED_S = 60.0
_POLL_S = 0.1
_MEANWHILE = "/meanwhile"


def is_grid(inquiry: Inquiry) -> bool:
    """Return whether a provider is a grid of servers."""
    return inquiry.bound.spec.scheme == SCHEME


def ask_grid(inquiry: Inquiry) -> Ruling:
    """Answer whether a grid keeps its promises about reads, writes and repair when its servers are killed."""
    spec = ProviderSpec.parse(inquiry.provider.spec)
    if (spec.scheme, spec.target) != ("local", SCHEME):
        return unknown(f"only nodes that a run starts are killed, not those of {spec.scheme}")
    return try_servers()


@dataclass(slots=True)
class Grid:
    """A grid whose servers can be killed, and its gateway's driver.

    Attributes:
        ends: the functions that end the running servers, the oldest first.
    """

    driver: Any
    furl_file: Path
    ends: list[Callable[[], object]] = field(default_factory=list)

    @classmethod
    def start(cls, needed: int, happy: int, total: int, stack: ExitStack) -> Grid:
        """Start a grid with as many servers as a file has shares. Raises ServiceError."""
        ports = ["{port}", *(f"{{port{number}}}" for number in range(2, total + 3))]
        service = _make_service("the grid is ready", "--may-lose", SCHEME, "{folder}", str(needed), str(happy), *ports)
        stack.callback(service.stop)
        endpoint = service.start()
        driver = connect_driver(ProviderSpec.parse(f"{SCHEME}:"), endpoint)
        stack.callback(driver.close)
        folder = Path(endpoint.credentials["cap_file"]).parent
        grid = cls(driver, folder / "introducer" / "private" / "introducer.furl")
        for number in range(1, total + 1):
            pid = int((folder / f"storage{number}" / "pid").read_text("ascii"))
            grid.ends.append(partial(os.kill, pid, signal.SIGKILL))
        return grid

    def lose_oldest(self) -> bool:
        """Kill the oldest server. Returns whether the gateway noticed."""
        self.ends.pop(0)()
        return self.is_noticed()

    def add_server(self, stack: ExitStack) -> None:
        """Start a new, empty server. Raises ServiceError."""
        service = _make_service("the node is ready", "--join", SCHEME, "{folder}", str(self.furl_file), "{port}")
        stack.callback(service.stop)
        service.start()
        self.ends.append(service.stop)

    def is_noticed(self) -> bool:
        """Wait a while, and return whether the gateway is connected to all servers that run, and to no other."""
        return wait_for(lambda: self.driver.count_servers() == len(self.ends), _NOTICED_S, poll_s=_POLL_S)


def _make_service(ready: str, *words: str) -> CommandService:
    recipe = load_recipe(SCHEME)
    return CommandService(replace(recipe, command=(*recipe.command[:2], *words), ready=ready))


def try_servers(needed: int = _NEEDED, happy: int = _HAPPY, total: int = _TOTAL) -> Ruling:
    """Kill servers of a new grid, repair a file with new servers in their place, and kill the others."""
    spare, content = total - needed, RandomContent(f"{SCHEME}/kept", _BYTES).read(0, _BYTES)
    evidence = [f"N={total} shares on as many nodes; H={happy} for a write, K={needed} for a read"]
    with ExitStack() as stack:
        grid = Grid.start(needed, happy, total, stack)
        driver = grid.driver
        driver.mkdir(_MEANWHILE)
        for name in ("/kept", "/unrepaired"):
            driver.put(name, LiteralContent(name.encode() + content))
        for lost in range(1, spare + 1):
            if not grid.lose_oldest():
                return unknown("the gateway does not notice that a node is gone", evidence)
            is_read = _reads(driver, "/kept", content)
            is_written = can_write(driver, f"{_MEANWHILE}/{lost}", RandomContent(f"{SCHEME}/{lost}", _BYTES))
            evidence.append(f"{lost} of {total} nodes killed: {describe_access(is_read, is_written)}")
            if not is_read:
                return no(f"with {lost} of {total} nodes killed it cannot be read; it promises {spare}", evidence)
        return _try_repair(grid, spare, content, evidence, stack)


def _try_repair(grid: Grid, spare: int, content: bytes, evidence: list[str], stack: ExitStack) -> Ruling:
    """Let a repair fill new servers in place of those that were lost, and kill as many others."""
    driver, total = grid.driver, len(grid.ends) + spare
    for _ in range(spare):
        grid.add_server(stack)
    if not grid.is_noticed():
        return unknown("the gateway does not notice new nodes", evidence)
    repaired = [driver.repair(path) for path in ("/", _MEANWHILE, "/kept")]
    evidence.append(f"{spare} new nodes: {'repaired' if all(repaired) else 'not repaired'}")
    if not all(grid.lose_oldest() for _ in range(spare)):
        return unknown("the gateway does not notice that a node is gone", evidence)
    is_repaired_read, is_unrepaired_read = _reads(driver, "/kept", content), _reads(driver, "/unrepaired", content)
    others = f"repaired, then {spare} others killed"
    evidence.append(f"{others}: {'read' if is_repaired_read else 'not read'}")
    evidence.append(
        f"{others}, a folder written to meanwhile: {'read' if can_list(driver, _MEANWHILE) else 'not read'}"
    )
    evidence.append(f"a file that was not repaired: {'read' if is_unrepaired_read else 'not read'}")
    if not is_repaired_read:
        return no(f"it survives {spare} of {total} nodes, but is not whole after a repair", evidence)
    if is_unrepaired_read:
        return unknown("a file that was not repaired survives as well, so nothing follows about the repair", evidence)
    return yes(f"read with {spare} of {total} nodes killed, and after a repair with {spare} others", evidence)


def _reads(driver: Any, path: str, content: bytes) -> bool:
    return can_read(driver, path, path.encode() + content)


def can_list(driver: Any, folder: str) -> bool:
    """Return whether a folder can be listed and has entries."""
    try:
        return bool([*driver.list(folder)])
    except CloudError:
        return False


def can_read(driver: Any, path: str, content: bytes) -> bool:
    """Return whether a path gives this content."""
    try:
        return b"".join(driver.get(path)) == content
    except CloudError:
        return False


def can_write(driver: Any, path: str, content: Any) -> bool:
    """Return whether content can be written to a path."""
    try:
        driver.put(path, content)
    except CloudError:
        return False
    return True


def describe_access(is_read: bool, is_written: bool) -> str:
    """Return in words whether a file was read, and whether one was written."""
    return f"{'read' if is_read else 'not read'}, {'written' if is_written else 'not written'}"
