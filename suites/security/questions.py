"""The questions of the table as data: the sentence, the function that answers it, and the advertised answer of 2014."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import certificates, convergence, deduplication, links, nodes, permissions, sizes, transit
from .rulings import Ruling

SOURCE = "BenchCloud thesis, section 2.2, Table 2.1, 2014, as advertised"

SERVICES: Mapping[str, str] = {
    "dropbox": "Dropbox", "dropbox+fast": "Dropbox", "mega": "MEGA", "gdrive": "Google Drive", "tahoe": "Tahoe-LAFS",
}  # fmt: skip
"""The column of Table 2.1 for a driver."""


class Question(NamedTuple):
    """One row of the table.

    Attributes:
        name: a short name, for ``-k``.
        title: the row's name, which is that of Table 2.1 if it has the row.
        asks: the question, in a sentence.
        ask: the function that finds the answer.
        is_good: the answer that a user wants.
        printed: the cells of Table 2.1, by service.
        option: the option of the suite whose value ``ask`` takes, too, as an argument of this name.
    """

    name: str
    title: str
    asks: str
    ask: Callable[..., Ruling]
    is_good: str = "yes"
    printed: Mapping[str, str] = {}
    option: str = ""


QUESTIONS = {
    question.title: question
    for question in (
        Question(
            "tls", "TLS", "Is everything encrypted in transit?", transit.ask_transit,
            printed={"Dropbox": "Yes", "MEGA": "To be studied", "Google Drive": "Yes", "Tahoe-LAFS": "Yes"},
        ),
        Question(
            "certificate", "Certificate checked", "Is nothing sent to a server with a wrong certificate?",
            certificates.ask_certificates,
        ),
        Question(
            "revocation", "Revoked certificate refused", "Is nothing sent to a server whose certificate is revoked?",
            certificates.ask_revocation,
        ),
        Question(
            "old_tls", "TLS 1.0 and 1.1 refused", "Is nothing sent by versions of TLS that are forbidden?",
            certificates.ask_old_tls,
        ),
        Question(
            "redirect", "Redirect to plain HTTP refused", "Does it stay on HTTPS if it is redirected?",
            certificates.ask_redirect,
        ),
        Question(
            "content", "File encryption", "Does the client encrypt contents?", transit.ask_content,
            printed={
                "Dropbox": "Server-side", "MEGA": "Client-side", "Google Drive": "To be studied",
                "Tahoe-LAFS": "Client-side",
            },
        ),
        Question(
            "names", "File meta data encrypted?", "Does the client encrypt names?", transit.ask_names,
            printed={"Dropbox": "Cannot know", "MEGA": "Yes", "Google Drive": "Not known", "Tahoe-LAFS": "Yes"},
        ),
        Question("padded", "File sizes padded", "Do files of different sizes look alike?", sizes.ask_padded),
        Question(
            "operator", "System operator able to access the content of users' files?",
            "Could the operator read contents?", transit.ask_operator, is_good="no",
            printed={"Dropbox": "Yes", "MEGA": "No (to be verified)", "Google Drive": "Yes", "Tahoe-LAFS": "No"},
        ),
        Question(
            "convergent", "Equal files look different", "Do equal files of different accounts look different?",
            convergence.ask_convergent,
        ),
        Question(
            "deduplication", "Deduplication across users leaks", "Does it show that another account has a file?",
            deduplication.ask_deduplication, is_good="no", option="copies",
        ),
        Question("at_rest", "Unreadable where stored", "Is content unreadable in the store?", transit.ask_at_rest),
        Question("guessable", "Links unguessable", "Is it hopeless to guess links?", links.ask_guessable),
        Question("revoked", "Revoked link closed", "Is a revoked link closed, and when?", links.ask_revoked),
        Question("expiry", "Link ends at its time", "Is a link closed once its time is over?", links.ask_expiry),
        Question(
            "permissions", "Permissions hold", "Can a reader only read, and a removed member not even that?",
            permissions.ask_permissions,
        ),
        Question(
            "full_access", "Full access as promised", "Can a member with all rights do what is promised, and no more?",
            permissions.ask_full_access,
        ),
        Question("deleted", "Deleted content gone", "Is deleted content gone?", links.ask_deleted),
    )
}  # fmt: skip

NODES = Question(
    "nodes",
    "Loss of nodes survived",
    "Is all there when as many nodes are lost as it promises?",
    nodes.ask_nodes,
)
"""The question to arrays and grids, about the thesis's section 2.3."""
