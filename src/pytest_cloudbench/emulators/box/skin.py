"""Box's API 2.0 on top of the core, written from the published specification and documents.

What may live here: routing, who may ask, and the form of errors. The functions themselves are in the modules beside
this one, each with its ``FUNCTIONS``. Nothing here imports a driver or an SDK, or a shared bug would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from pytest_cloudbench.emulators.box import account, downloads, events, files, sessions, sharing, social, uploads
from pytest_cloudbench.emulators.box.answers import BoxError, insufficient_scope, not_offered, unauthorized
from pytest_cloudbench.emulators.box.items import query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Match, Route
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
"""What Box has and this emulator does not, by the part of the path that asks for it."""


class Box:
    """The skin: see ``skin.Skin``."""

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
        token = self.state.token("", 32)
        self.credentials = {"access_token": token}
        self.state.oauth.add(token)
        self.configure(profile)
        self._routes = RouteTable((each.method, each.path, self._route(each)) for each in _FUNCTIONS)

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        store, readiness = self.state.store, profile.readiness
        store.quota_bytes = profile.quota.bytes
        store.readiness_s, store.list_delay_s = readiness.delay_s, readiness.list_delay_s
        store.delete_delay_s = readiness.delete_delay_s
        self.state.account, self.state.job_times = profile.account, profile.jobs

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """What a request is for. Hosts of uploads serve the same functions below ``/api``."""
        return self._routes.find(method, _plain(path))

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Status 429."""
        return BoxError(429, refusal.reason).answer((b"retry-after", b"%d" % refusal.retry_after_s))

    def broken(self, call: Call) -> Answer:
        """Status 500."""
        return BoxError(500, "internal_server_error").answer()

    def unknown(self, method: str, path: str) -> Answer:
        """Not a function of the API, or not with this method."""
        if allowed := self._routes.methods(_plain(path)):
            return BoxError(405, "method_not_allowed").answer((b"allow", ", ".join(allowed).encode()))
        known = [what for part, what in _NOT_OFFERED.items() if part in _plain(path).split("/")]
        if known and _plain(path).startswith("/2.0/"):
            return not_offered(known[0])
        return BoxError(404, "not_found").answer()

    # ---------------------------------------------------------------- one request

    def _route(self, function: BoxFunction) -> Route:
        def handler(call: Call) -> Answer | Awaitable[Answer]:
            self.state.current_bounds = None if function.is_open else self.state.bounds.get(_token_of(call))
            try:
                made: Answer | Awaitable[Answer] = function.run(self.state, call)
            except BoxError as error:
                return error.answer()
            return made

        denied = None if function.is_open else self._denied
        return Route(function.name, function.kind, handler, sink=function.sink, denied=denied)

    def _denied(self, call: Call) -> Answer | None:
        """Returns the refusal of a call without a valid token; None if it is allowed."""
        token = _token_of(call)
        until_s = self.state.oauth.tokens.get(f"Bearer {token}".encode())
        if until_s is None or until_s <= call.now_s:
            return unauthorized(bool(token) or b"authorization" in call.headers)
        bounds = self.state.bounds.get(token)
        return None if bounds is None or bounds.allows(call.route.name) else insufficient_scope()


def _token_of(call: Call) -> str:
    """Returns the access token in the header or in the query; empty if there is none."""
    header = call.headers.get(b"authorization")
    if header is None:
        return query_of(call).get("access_token", "") if b"access_token=" in call.query else ""
    kind, _, token = header.decode("utf-8", "replace").partition(" ")
    return token if kind == "Bearer" else ""


def _plain(path: str) -> str:
    """Returns a path without the prefix of upload hosts, and without a slash at the end."""
    path = path.removeprefix("/api") if path.startswith("/api/2.0/") else path
    return path.rstrip("/") or "/"
