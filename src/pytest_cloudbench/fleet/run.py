"""Facts of a run that the controller and every agent must agree on. Imported by fifty agents: keep it light."""

from __future__ import annotations

from hashlib import blake2b

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.messages import Message

_NAME_LENGTH = 150
"""The most bytes of a file name: file systems limit bytes, of which a character may have four."""


class RunFacts(Message, frozen=True):
    """Facts that are the same for a whole run, on controller and agents (plain data, so xdist can carry them).

    Attributes:
        run_id: UTC time and four hexadecimal digits; names folders on the provider and in the results.
        seed: seed of payloads and random delays.
        time_scale: how much faster than real time intervals and the emulator's clock run.
        max_ops, max_bytes: the budget of the whole run; None if unbounded.
        max_lateness_s: the bound on lateness p99.
        results: the folder for this run's records.
        host: see ``agent.host_id``.
        host_name: the name of the host that this agent runs on, empty on the controller's machine. Agents differ in it.
        agents_here: the number of agents on that host.
        owner: the controller's process, as ``results.owner`` describes it.
        gated: whether the controller has a say in an item's outcome, and may have it run again.
        version: the controller's version of this package; an agent with another version takes no part.
    """

    run_id: str
    seed: str
    time_scale: float
    max_ops: int | None
    max_bytes: int | None
    max_lateness_s: float
    results: str
    host: str
    owner: str = ""
    gated: bool = False
    version: str = __version__
    host_name: str = ""
    agents_here: int = 1


def slug(text: str) -> str:
    """Return a file name made from a node id. Different texts have different names.

    It ends with a digest of the text if that was changed, since ``a/b_c`` and ``a_b/c`` would be the same otherwise.
    """
    name = "".join(character if character.isalnum() or character in "-._" else "_" for character in text)
    if name == text and len(name.encode()) <= _NAME_LENGTH:
        return name
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    end = name.encode()[-(_NAME_LENGTH - len(digest) - 1) :].decode(errors="ignore")  # without half a character
    return f"{end}-{digest}"
