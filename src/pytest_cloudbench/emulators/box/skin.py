"""Routing, authentication and errors of Box's API 2.0, after its published specification and documents.

The functions of the API are in the modules beside this one, each with its ``FUNCTIONS``. No module of the emulator
imports a driver or an SDK, because a bug that both sides shared would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pytest_cloudbench.emulators.accounts import LetsMembersIn
from pytest_cloudbench.emulators.box import (
    account,
    downloads,
    events,
    files,
    members,
    sessions,
    sharing,
    social,
    uploads,
)
from pytest_cloudbench.emulators.box.answers import BoxError, insufficient_scope, missing_feature, unauthorized
from pytest_cloudbench.emulators.box.scopes import Bounds
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Match, Route, Skin
from pytest_cloudbench.emulators.throttle import Refusal

_FUNCTIONS = (
    *uploads.FUNCTIONS, *downloads.FUNCTIONS, *files.FUNCTIONS, *sessions.FUNCTIONS, *sharing.FUNCTIONS,
    *account.FUNCTIONS, *events.FUNCTIONS, *social.FUNCTIONS,
)  # fmt: skip

_NOT_OFFERED: Mapping[str, str] = {
    "ai": "Box AI",
    "avatar": "avatars",
    "classifications": "classifications",
    "collaboration_whitelist_entries": "what enterprises administer",
    "collections": "collections",
    "device_pinners": "what enterprises administer",
    "docgen_batches": "Doc Gen",
    "docgen_templates": "Doc Gen",
    "enterprises": "what enterprises administer",
    "file_requests": "file requests",
    "folder_locks": "locks on folders",
    "group_memberships": "groups",
    "groups": "groups",
    "hubs": "hubs",
    "integration_mappings": "integrations",
    "invites": "invitations to enterprises",
    "legal_hold_policies": "retention and legal holds",
    "metadata": "metadata",
    "metadata_cascade_policies": "metadata",
    "metadata_queries": "metadata",
    "metadata_taxonomies": "metadata",
    "metadata_templates": "metadata",
    "recent_items": "recent items",
    "retention_policies": "retention and legal holds",
    "retention_policy_assignments": "retention and legal holds",
    "shield_information_barriers": "what enterprises administer",
    "sign_requests": "sign requests",
    "sign_templates": "sign requests",
    "storage_policies": "what enterprises administer",
    "task_assignments": "tasks",
    "tasks": "tasks",
    "terms_of_services": "what enterprises administer",
    "thumbnail.jpg": "thumbnails",
    "thumbnail.png": "thumbnails",
    "watermark": "watermarks",
    "web_links": "web links",
    "webhooks": "webhooks",
    "workflows": "workflows",
    "zip_downloads": "downloads as ZIP files",
}
"""Features of Box that this emulator does not offer, by the part of the path that requests them."""


class Box:
    """The skin of Box, as described by ``skin.Skin``."""

    roles = ("api", "upload", "account")
    host_names = (
        "api.box.com",
        "upload.box.com",
        "upload.app.box.com",
        "account.box.com",
        "app.box.com",
        "www.box.com",
        "dl.boxcloud.com",
        "*.realtime.services.box.net",
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        self.state = BoxState(seed, clock, profile.account, profile.jobs, account.DIALECT)
        token = self.state.random_token("", 32)
        self.credentials = {"access_token": token}
        self.state.oauth.add_token(token)
        self.find_member: Callable[[bytes, Mapping[bytes, bytes]], LetsMembersIn | None] = lambda query, headers: None
        self.configure(profile)
        self._routes = RouteTable(
            (function.method, function.path, self._make_route(function)) for function in _FUNCTIONS
        )

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        return self.state.store

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        store, readiness = self.state.store, profile.readiness
        store.quota_bytes = profile.quota.bytes
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.state.account, self.state.job_times = profile.account, profile.jobs

    def end_waits(self) -> None:
        """Answer the clients that wait for events, because a reset is about to replace the account."""
        self.state.events.finish()

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request. Hosts of uploads serve the same functions below ``/api``."""
        return self._routes.find(method, _strip_path(path))

    def recognises(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account, or an address that this account issued."""
        if b"authorization" in headers or b"access_token=" in query:
            return f"Bearer {_read_token(headers, query)}".encode() in self.state.oauth.tokens
        if path == "/subscribe":
            return parse_form(query).get("channel") == self.state.secret
        is_link = sharing.find_linked_node(self.state, path) is not None
        return is_link or any(downloads.is_signed(self.state, part) for part in path.split("/") if part.count(".") == 3)

    def authorizes(self, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account that has not ended."""
        header = f"Bearer {_read_token(headers, query)}".encode()
        return self.state.oauth.is_valid(header, self.state.clock.now_s())

    def admits(self, path: str, headers: Mapping[bytes, bytes], address: str) -> bool:
        """Return whether a request is for an item that the account with this address may use, or names a link to it."""
        return members.admits(self.state, path, address) or sharing.leads_to(self.state, path, headers)

    def meet(self, peers: Callable[[], Sequence[Skin]]) -> None:
        """Note how to find the accounts of the service, this one among them."""
        self.state.peers = lambda: [peer.state for peer in peers() if isinstance(peer, Box)]

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Answer with status 429."""
        return BoxError(429, refusal.reason).answer((b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, call: Call) -> Answer:
        """Answer with status 500."""
        return BoxError(500, "internal_server_error").answer()

    def unknown(self, method: str, path: str) -> Answer:
        """Answer that there is no such function, or that it does not accept this method."""
        if allowed := self._routes.methods(_strip_path(path)):
            return BoxError(405, "method_not_allowed").answer((b"allow", ", ".join(allowed).encode()))
        features = [feature for part, feature in _NOT_OFFERED.items() if part in _strip_path(path).split("/")]
        if features and _strip_path(path).startswith("/2.0/"):
            return missing_feature(features[0])
        return BoxError(404, "not_found").answer()

    # ---------------------------------------------------------------- one request

    def _make_route(self, function: BoxFunction) -> Route:
        def handler(call: Call) -> Answer | Awaitable[Answer]:
            self.state.current_bounds = None if function.is_open else self._find_bounds(call)
            try:
                answer: Answer | Awaitable[Answer] = function.run(self.state, call)
            except BoxError as error:
                return error.answer()
            return answer

        refuse = None if function.is_open else self._refuse_unauthorized
        return Route(function.name, function.kind, handler, sink=function.sink, denied=refuse)

    def _refuse_unauthorized(self, call: Call) -> Answer | None:
        """Return the refusal of a call without a valid token, or None if it is allowed."""
        token = _read_token(call.headers, call.query)
        until_s = self.state.oauth.tokens.get(f"Bearer {token}".encode())
        if until_s is None and (member := self.find_member(call.query, call.headers)) is not None:
            assert isinstance(member, Box)
            return member.refuse_by_scope(call) or sharing.refuse_guest(self.state, call, member.state)
        if until_s is None or until_s <= call.now_s:
            return unauthorized(bool(token) or b"authorization" in call.headers)
        return self.refuse_by_scope(call)

    def _find_bounds(self, call: Call) -> Bounds | None:
        """Return the limits of a call's token, which may be one of another account."""
        if not self.state.bounds and call.headers.get(b"authorization") in self.state.oauth.tokens:
            return None  # nearly always, so that it costs nothing
        token = _read_token(call.headers, call.query)
        is_own = f"Bearer {token}".encode() in self.state.oauth.tokens
        skin = self if is_own else self.find_member(call.query, call.headers)
        return skin.state.bounds.get(token) if isinstance(skin, Box) else None

    def refuse_by_scope(self, call: Call) -> Answer | None:
        """Return the refusal of a call that its token's scopes do not allow, or None."""
        if not self.state.bounds:
            return None
        bounds = self.state.bounds.get(_read_token(call.headers, call.query))
        return None if bounds is None or bounds.allows(call.route.name) else insufficient_scope()


def _read_token(headers: Mapping[bytes, bytes], query: bytes) -> str:
    """Return the access token in the header or in the query, which is empty if there is none."""
    header = headers.get(b"authorization")
    if header is None:
        return parse_form(query).get("access_token", "") if b"access_token=" in query else ""
    kind, _, token = header.decode("utf-8", "replace").partition(" ")
    return token if kind == "Bearer" else ""


def _strip_path(path: str) -> str:
    """Return a path without the prefix of upload hosts and without a final slash."""
    path = path.removeprefix("/api") if path.startswith("/api/2.0/") else path
    return path.rstrip("/") or "/"
