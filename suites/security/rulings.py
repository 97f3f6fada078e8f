"""The answers of this suite: yes, no or unknown, with the observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ruling:
    """An answer to a question about security.

    Attributes:
        answer: yes, no or unknown.
        how: the reason, in a few words.
        evidence: the observations, in sentences.
        numbers: numbers that were measured meanwhile, such as ``link_closed_s``.
    """

    answer: str
    how: str
    evidence: Sequence[str] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return this as plain data, which all agents get."""
        return {
            "answer": self.answer, "how": self.how, "evidence": [*self.evidence], "numbers": dict(self.numbers),
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Ruling:
        """Return the ruling that ``plain`` describes."""
        return cls(plain["answer"], plain["how"], tuple(plain["evidence"]), dict(plain["numbers"]))


def yes(how: str, evidence: Sequence[str] = (), **numbers: float) -> Ruling:
    """Return a positive ruling."""
    return Ruling("yes", how, tuple(evidence), numbers)


def no(how: str, evidence: Sequence[str] = (), **numbers: float) -> Ruling:
    """Return a negative ruling."""
    return Ruling("no", how, tuple(evidence), numbers)


def unknown(how: str, evidence: Sequence[str] = (), **numbers: float) -> Ruling:
    """Return a ruling that says why the answer is not known."""
    return Ruling("unknown", how, tuple(evidence), numbers)
