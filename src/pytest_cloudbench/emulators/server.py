"""The emulator's process: an ASGI application on uvicorn over TLS, a control socket, one line when ready.

The skin decides what an answer says, and ``behaviour`` when it is sent.

A request passes: route -> authorization -> throttle -> body -> fault -> skin -> wait -> answer. If the profile has no
delays and no faults, a request needs no timer and no task of its own, and a short one passes by ``answer_now``. No body
is read before the request is known to be allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from pytest_cloudbench.emulators.accounts import Accounts
from pytest_cloudbench.emulators.behaviour import Behaviour, EmulatorClock
from pytest_cloudbench.emulators.control import serve_control
from pytest_cloudbench.emulators.profile import Profile, change_profile, find_profile, list_settings
from pytest_cloudbench.emulators.proxy import serve_proxy
from pytest_cloudbench.emulators.registry import SKINS
from pytest_cloudbench.emulators.sending import Message, Send, send_answer, split_body
from pytest_cloudbench.emulators.skin import Answer, Call, Kind, Route, Sink, Skin
from pytest_cloudbench.emulators.spool import SPOOL, DiskFullError
from pytest_cloudbench.emulators.tls import forget_key, make_certificate, make_control_token, make_file_keeper
from pytest_cloudbench.model import ConfigError, Endpoint, ServiceError

_PIECE_BYTES = 64 * 1024
_MAX_WHOLE_BODY_BYTES = 32 * 1024 * 1024
"""The largest body for a route that has no sink: JSON and forms."""
_CONTROL_LINE_BYTES = 1024 * 1024
_STORED_BYTES = 64 * 1024 * 1024
_KEEP_FILES_S = 1.0
_CONTROLS = (
    '{"set": {...}}, {"get": "profile"|"stats"|"stored"}, {"reset": true}, {"refill": true}, {"faults": true|false}, '
    '{"delays": true|false}, {"account": NUMBER}'
)
_SEED_STEP = 1_000_003
_LOOPBACK = "127.0.0.1"
_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
_DISK_FULL = Answer(507, _TEXT, b"Insufficient Storage: the disk of the emulator's folder is full")
_KEEP_ALIVE_S = 600
_MOST_DIGITS = 64 * 1024
"""As many as the head of a request can hold. By itself, Python makes no number of more than 4,300."""
_BACKLOG = 4096
_READS = frozenset({Kind.META, Kind.READ})

_Receive = Callable[[], Awaitable[Message]]


class _Disconnect(Exception):
    """The client disconnected before its body was complete."""


class _BodyTooLong(Exception):
    """The body is longer than its route accepts."""


class _WholeBody:
    """The whole body of a request whose route has no sink. Raises _BodyTooLong."""

    def __init__(self) -> None:
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > _MAX_WHOLE_BODY_BYTES:
            raise _BodyTooLong

    def finish(self) -> Any:
        return bytes(self._body)


class Emulator:
    """The ASGI application, and the commands of the control socket."""

    def __init__(self, profile: Profile, *, time_scale: float = 1.0, seed: int = 0) -> None:
        self._clock = EmulatorClock(time_scale)
        self._seed = seed
        self._starts = 0
        self._makes_faults = self._makes_delays = True
        self._start_account(profile)

    def _start_account(self, profile: Profile) -> None:
        # Each reset makes other draws: repeats of an experiment that met the same delays would hide the noise.
        self.behaviour = Behaviour(profile, self._clock, self._seed + _SEED_STEP * self._starts)
        self.behaviour.make_faults(self._makes_faults)
        self.behaviour.make_delays(self._makes_delays)
        self._starts += 1
        module = importlib.import_module(SKINS[profile.meta.api])
        self.accounts = Accounts(
            lambda offset: module.create(_lagging_profile(self.behaviour.profile), self._clock, self._seed + offset)
        )
        self.skin: Skin = self.accounts.first
        self._counts: Counter[tuple[str, int]] = Counter()
        self._refused = 0
        self._accepted_writes = 0

    # ---------------------------------------------------------------- requests

    async def __call__(self, scope: Message, receive: _Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = self._make_call(scope)
        if call is None:
            await send_answer(scope, send, self.skin.unknown(scope["method"], scope["path"]))
            return
        denial = call.route.denied(call) if call.route.denied is not None else None
        if denial is not None:
            await self._turn_away(call, denial, scope, send)
            return
        if call.route.kind is Kind.FREE or not self.behaviour.limits:
            await self._serve_in_slot(call, scope, receive, send)
            return
        write = call.route.kind is Kind.WRITE
        throttle = self.behaviour.throttle
        refusal = throttle.admit(call.now_s, write=write)
        if refusal is not None:
            self._refused += 1
            answer = self.skin.refused(call, refusal)
            self._counts[call.route.name, answer.status] += 1
            if self.behaviour.delays:
                await self.behaviour.wait_until(call.now_s + self.behaviour.latency_s(Kind.META))
            await send_answer(scope, send, answer)
            return
        try:
            await self._serve_in_slot(call, scope, receive, send)
        finally:
            throttle.release(self._clock.now_s(), write=write)

    def denial(self, scope: Message) -> Answer | None:
        """Return the refusal of a request based on its headers alone, or None if it is allowed."""
        call = self._make_call(scope)
        return call.route.denied(call) if call is not None and call.route.denied is not None else None

    @property
    def is_prompt(self) -> bool:
        """True if no request may be refused, delayed or disturbed, so that ``answer_now`` may answer."""
        return self.behaviour.is_plain

    def answer_now(self, scope: Message, body: bytes) -> Answer | Coroutine[Any, Any, Answer] | None:
        """Return the answer to a request whose body is complete, or a coroutine of it if the request has to wait.

        Return None if the request must be served as usual, in which case nothing has been done for it.
        """
        call = self._make_call(scope)
        if call is None or call.route.kind is Kind.FREE or not self.behaviour.is_plain:
            return None
        route = call.route
        if route.denied is not None and route.denied(call) is not None:
            return None
        if route.kind in _READS:
            call.now_s += self.behaviour.lead_s(call.now_s)
        try:
            call.body = body if route.sink is None else _feed(route.sink(call), body)
        except DiskFullError:
            begun: Answer | Awaitable[Answer] = _DISK_FULL
        else:
            begun = _begin_handler(call)
        if not isinstance(begun, Answer):
            return self._finish_call(route, begun)
        self._count(route, begun.status)
        return begun

    async def _finish_call(self, route: Route, begun: Awaitable[Answer]) -> Answer:
        answer = await _finish_handler(begun)
        self._count(route, answer.status)
        return answer

    async def send_begun(
        self, answer: Answer | Awaitable[Answer], scope: Message, receive: _Receive, send: Send
    ) -> None:
        """Send what ``answer_now`` returned, as the ASGI application of its request."""
        await send_answer(scope, send, answer if isinstance(answer, Answer) else await answer)

    def _count(self, route: Route, status: int) -> None:
        self._counts[route.name, status] += 1
        if route.kind is Kind.WRITE and status < 300:
            self._accepted_writes += 1

    def _make_call(self, scope: Message) -> Call | None:
        """Return the call of a request without its body, or None if the API has no route for its path and method."""
        method, path, query = scope["method"], scope["path"], scope["query_string"]
        raw_path = scope["raw_path"]
        headers = dict(scope["headers"])
        skin = self.accounts.find(path, query, headers)
        match = skin.route(method, raw_path.decode("ascii") if b"%" in raw_path else path, query)
        if match is None:
            return None
        return Call(match.route, method, path, match.parameters, query, headers, self._clock.now_s())

    async def _turn_away(self, call: Call, answer: Answer, scope: Message, send: Send) -> None:
        """Refuse a request without reading the rest of its body."""
        self._counts[call.route.name, answer.status] += 1
        if self.behaviour.delays and call.route.kind is not Kind.FREE:
            await self.behaviour.wait_until(call.now_s + self.behaviour.latency_s(Kind.META))
        connection = scope.get("state", {}).get("connection")
        if connection is None or not connection.turn_away(answer.status, answer.headers, answer.body):
            await send_answer(scope, send, answer)

    async def _serve_in_slot(self, call: Call, scope: Message, receive: _Receive, send: Send) -> None:
        """Serve one admitted request, after waiting for a slot if slots are limited."""
        slots = self.behaviour.slots
        if slots is None or call.route.kind is Kind.FREE:
            await self._process_call(call, scope, receive, send)
        else:
            async with slots:  # first come, first served
                await self._process_call(call, scope, receive, send)

    async def _process_call(self, call: Call, scope: Message, receive: _Receive, send: Send) -> None:
        """Read the body, call the skin, wait and answer."""
        behaviour, route = self.behaviour, call.route
        try:
            call.body = await self._read_body(call, receive)
        except _Disconnect:
            self._counts[route.name, 0] += 1
            return
        except (_BodyTooLong, DiskFullError) as error:
            answer = _DISK_FULL if isinstance(error, DiskFullError) else Answer(413, _TEXT, b"Payload Too Large")
            await self._turn_away(call, answer, scope, send)
            return
        now_s = call.now_s = self._clock.now_s()
        if route.kind in _READS:
            call.now_s += behaviour.lead_s(now_s)
        fault = None
        if behaviour.faults and route.kind is not Kind.FREE:
            fault = behaviour.draw_fault()
            if route.kind is Kind.WRITE:
                call.damage = behaviour.draw_damage()
        if fault == "error":
            answer = self.skin.broken(call)
        elif fault == "reset":
            scope["state"]["connection"].reset()
            self._counts[route.name, 0] += 1
            return
        else:
            begun = _begin_handler(call)
            answer = begun if isinstance(begun, Answer) else await _finish_handler(begun)
        if behaviour.delays:
            await behaviour.wait_until(now_s + behaviour.latency_s(route.kind))
        if fault == "reset_after":
            scope["state"]["connection"].reset()
            self._counts[route.name, 0] += 1
            return
        self._count(route, answer.status)
        has_body = bool(len(answer.body)) and call.method != "HEAD"
        if has_body and behaviour.delays and behaviour.profile.bandwidth.down_bytes_per_s:
            await self._send_slowly(send, answer)
        else:
            await send_answer(scope, send, answer)

    async def _read_body(self, call: Call, receive: _Receive) -> Any:
        """Return the body as the route's sink built it, received at the speed of the profile's upstream."""
        started_s, new_sink = self._clock.now_s() if self.behaviour.delays else 0.0, call.route.sink
        message = await receive()
        has_more = message.get("more_body", False)
        body: bytes = message.get("body", b"")
        sink: Sink = _WholeBody() if new_sink is None else new_sink(call)
        if not has_more and message["type"] == "http.request":
            if self.behaviour.delays:
                await self.behaviour.wait_until(started_s + self.behaviour.upload_s(len(body)))
            if new_sink is None:
                return body
            return _feed(sink, body)
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise _Disconnect
            piece = message.get("body", b"")
            size += len(piece)
            sink.feed(piece)
            if self.behaviour.delays:
                await self.behaviour.wait_until(started_s + self.behaviour.upload_s(size))
            if not message.get("more_body", False):
                break
            message = await receive()
        return sink.finish()

    async def _send_slowly(self, send: Send, answer: Answer) -> None:
        """Send the answer in pieces, at the speed of the profile's downstream."""
        started_s = self._clock.now_s()
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        sent_bytes = 0
        for piece in split_body(answer.body, _PIECE_BYTES):
            sent_bytes += len(piece)
            await self.behaviour.wait_until(started_s + self.behaviour.download_s(sent_bytes))
            await send({"type": "http.response.body", "body": piece, "more_body": sent_bytes < len(answer.body)})

    # ---------------------------------------------------------------- control

    def control(self, request: object) -> dict[str, object]:
        """Answer one request of the control socket. Never raises."""
        if not isinstance(request, dict) or len(request) != 1:
            return {"ok": False, "error": f"expected one of {_CONTROLS}"}
        (verb, value), profile = next(iter(request.items())), self.behaviour.profile
        if verb == "set" and isinstance(value, dict):
            try:
                profile = change_profile(profile, value)
            except ConfigError as error:
                return {"ok": False, "error": str(error)}
            self.behaviour.configure(profile)
            self.accounts.configure(_lagging_profile(profile))
            return {"ok": True, "profile": list_settings(profile)}
        if (verb == "get" and value in ("profile", "stats", "stored")) or (verb == "account" and type(value) is int):
            return self._show(value)
        if verb == "reset" and value is True:
            self.accounts.end_waits()
            self._start_account(profile)
            gc.collect()  # the former account's nodes refer to each other, and hold space in memory and on disk
        elif verb == "refill" and value is True:
            self.behaviour.refill()
        elif verb == "faults" and isinstance(value, bool):
            self._makes_faults = value
            self.behaviour.make_faults(value)
        elif verb == "delays" and isinstance(value, bool):
            self._makes_delays = value
            self.behaviour.make_delays(value)
        else:
            return {"ok": False, "error": f"cannot {verb} {value!r}"}
        return {"ok": True}

    def _show(self, subject: object) -> dict[str, object]:
        """Answer a request to show something: the profile, the statistics, the store, or an account by its number."""
        profile = self.behaviour.profile
        if subject == "profile":
            return {"ok": True, "name": profile.meta.name, "api": profile.meta.api, "profile": list_settings(profile)}
        if subject == "stats":
            return {"ok": True, "stats": self.stats()}
        if subject == "stored":
            return self._list_stored()
        if isinstance(subject, int) and (skin := self.accounts.open(subject)) is not None:
            return {"ok": True, "credentials": dict(skin.credentials)}
        return {"ok": False, "error": f"an emulator of {profile.meta.api} has no account {subject}"}

    def _list_stored(self) -> dict[str, object]:
        """Return the path and content of each stored version in all accounts, unless that is too much for one line."""
        if getattr(self.skin, "store", None) is None:  # a skin of another project, older than this attribute
            return {"ok": False, "error": "the skin does not show its store"}
        stored = list(self.accounts.kept())
        if sum(len(blob) for _, blob in stored) > _STORED_BYTES:
            return {"ok": False, "error": f"the accounts hold more than {_STORED_BYTES:,} bytes"}
        return {"ok": True, "stored": [(name, base64.b64encode(blob.data).decode()) for name, blob in stored]}

    def stats(self) -> dict[str, object]:
        """Return counts since the start or the last reset. Status 0 is a connection that ended without an answer."""
        routes: dict[str, dict[str, int]] = {}
        for (name, status), count in sorted(self._counts.items()):
            routes.setdefault(name, {})[str(status)] = count
        return {
            "routes": routes,
            "accepted_writes": self._accepted_writes,
            "refused": self._refused,
            "cpu_s": time.process_time(),
        }


def _lagging_profile(profile: Profile) -> Profile:
    """Return the profile of the lagging replica, which the skin imitates.

    Reads that another replica answers get a later time, see ``Behaviour.lead_s``.
    """
    return dataclasses.replace(profile, readiness=profile.readiness.of_last_replica())


def _feed(sink: Sink, body: bytes) -> Any:
    sink.feed(body)
    return sink.finish()


def _begin_handler(call: Call) -> Answer | Awaitable[Answer]:
    """Return what a call's handler returns, or status 507 if the disk became full while it joined contents."""
    try:
        return call.route.handler(call)
    except DiskFullError:
        return _DISK_FULL


async def _finish_handler(answer: Awaitable[Answer]) -> Answer:
    await asyncio.sleep(0)  # waiting once makes this a task: see ``protocol``
    try:
        return await answer
    except DiskFullError:
        return _DISK_FULL


# -------------------------------------------------------------------- process


async def _serve_requests(
    emulator: Emulator, listener: socket.socket, folder: str, announce: Callable[[str, str, str], None]
) -> None:
    """Serve until a signal. When ready, call ``announce`` with the control socket, its token file and the proxy."""
    import uvicorn

    from pytest_cloudbench.emulators.protocol import BufferedConnection

    token, token_file = make_control_token(folder)
    serve_control_socket = functools.partial(serve_control, emulator.control, token)
    control = await asyncio.start_server(serve_control_socket, _LOOPBACK, 0, limit=_CONTROL_LINE_BYTES)
    host, port = control.sockets[0].getsockname()[:2]
    proxy = await serve_proxy(emulator.skin.host_names, *listener.getsockname()[:2])

    class Server(uvicorn.Server):
        """A server that announces when it accepts requests."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            forget_key(folder)
            await super().startup(sockets)
            _call_often(make_file_keeper(folder))
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 50, 100)
            announce(f"{host}:{port}", token_file, proxy)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logging.disable()  # requests that are cut off by the shutdown are not errors
            await super().shutdown(sockets)

    config = uvicorn.Config(
        emulator,
        http=BufferedConnection,  # type: ignore[arg-type]  # uvicorn only calls it
        ws="none",
        lifespan="off",
        loop="none",
        interface="asgi3",
        ssl_certfile=os.path.join(folder, "server.pem"),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again once it has shut down, when nothing is left to do.
        signal.signal(number, lambda *_: None)
    await Server(config).serve(sockets=[listener])


def _call_often(work: Callable[[], None]) -> None:
    work()
    asyncio.get_running_loop().call_later(_KEEP_FILES_S, _call_often, work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _bind_port(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        advice = "choose another, or 0" if port else "name an address of this machine"
        raise ServiceError(f"port {port} of {address} cannot be used ({reason}); {advice}") from error
    return listener


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard limit, because each kept-alive connection needs one."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _watch_lifeline(folder: str) -> None:
    """End this process at once when stdin ends, since the process that started it has then died or closed it."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _serve_until_stopped(options: argparse.Namespace) -> None:
    """Serve one emulator until it is told to end, and remove its folder."""
    profile = find_profile(options.profile or options.api, options.api)
    emulator = Emulator(profile, time_scale=options.time_scale, seed=options.seed)
    listener = _bind_port(options.address, options.port)
    port = listener.getsockname()[1]
    folder = SPOOL.folder = make_certificate(
        list(dict.fromkeys(["localhost", _LOOPBACK, options.address, *emulator.skin.host_names]))
    )

    def announce(control: str, control_token_file: str, proxy: str) -> None:
        urls = dict.fromkeys(emulator.skin.roles, f"https://{options.address}:{port}")
        ca_file = os.path.join(folder, "ca.pem")
        endpoint = Endpoint(urls, emulator.skin.credentials, ca_file, control, profile.meta.api, proxy)
        ready = {
            **endpoint.plain(),
            "control_token_file": control_token_file,
            "profile": profile.meta.name,
            "pid": os.getpid(),
        }
        print(json.dumps(ready), flush=True)

    if options.lifeline:
        _watch_lifeline(folder)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_requests(emulator, listener, folder, announce))
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


def _positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("expected a number above 0")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one emulator in this process until it is stopped, and return the exit status."""
    parser = argparse.ArgumentParser(prog="cloudbench emulate", description="Run one emulated provider on loopback.")
    parser.add_argument("api", nargs="?", default="", help="which API: " + ", ".join(SKINS))
    parser.add_argument("--profile", default="", help="name of a shipped profile, or a .toml file")
    parser.add_argument("--address", default=_LOOPBACK, help="where it listens, an IPv4 address or name")
    parser.add_argument("--port", type=int, default=0, help="TLS port; 0 takes a free one")
    parser.add_argument("--time-scale", type=_positive_number, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lifeline", action="store_true", help="exit when stdin ends")
    options = parser.parse_args(arguments)
    if not options.api and not options.profile:
        parser.error("expected an api or --profile")
    _allow_many_connections()
    former_digits, former_handler = sys.get_int_max_str_digits(), signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        sys.set_int_max_str_digits(_MOST_DIGITS)
        _serve_until_stopped(options)
    except (ConfigError, ServiceError) as error:
        print(f"cloudbench emulate: {error}", file=sys.stderr)
        return 4 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, former_handler)
        sys.set_int_max_str_digits(former_digits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
