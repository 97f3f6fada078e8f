"""A raw client of MEGA for tests. Its cryptography is its own and shares no code with the emulator.

Every answer to a command is checked against the shape that clients expect (``SHAPES``), because MEGA publishes no
machine-readable specification. The shapes are from commands.cpp and megaclient.cpp of github.com/meganz/sdk in April
2026.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import struct
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jsonschema
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

_HANDLE = {"type": "string", "pattern": "^[A-Za-z0-9_-]{8}$"}
_USER = {"type": "string", "pattern": "^[A-Za-z0-9_-]{11}$"}
_BASE64 = {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}
_COUNT = {"type": "integer", "minimum": 0}
_NODE = {
    "type": "object",
    "required": ["h", "p", "u", "t", "a", "k", "ts"],
    "properties": {
        "h": _HANDLE, "p": {"anyOf": [_HANDLE, {"const": ""}]}, "u": _USER, "t": {"enum": [0, 1, 2, 3, 4]},
        "a": _BASE64,
        "k": {"type": "string", "pattern": "^([A-Za-z0-9_-]{8,11}:[A-Za-z0-9_-]{22,43}(/|$))*$"},
        "ts": _COUNT, "s": _COUNT, "fa": {"type": "string"},
    },
    "if": {"properties": {"t": {"const": 0}}}, "then": {"required": ["s"]},
    "additionalProperties": False,
}  # fmt: skip
_NODES = {"type": "array", "items": _NODE}
_URL = {"type": "string", "pattern": "^https://"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": {**required, **optional},
            "additionalProperties": False}  # fmt: skip


SHAPES: dict[str, Any] = {
    "us0": _object({"v": {"enum": [1, 2]}}, s=_BASE64),
    "us": _object({"csid": _BASE64, "privk": _BASE64, "k": _BASE64, "u": _USER, "ach": _COUNT}, sek=_BASE64),
    "ug": {"type": "object", "required": ["u", "since", "email", "name", "k", "privk", "pubk", "c"]},
    "uq": {"type": "object", "required": ["mstrg", "cstrg", "cstrgn", "uslw", "usl", "utype", "bt", "tah", "balance"]},
    "f": _object(
        {"f": _NODES},
        ok={"type": "array", "items": _object({"h": _HANDLE, "ha": _BASE64, "k": _BASE64})},
        s={"type": "array", "items": _object({"h": _HANDLE, "u": {"type": "string"}, "r": _COUNT, "ts": _COUNT})},
        ph={"type": "array", "items": _object({"h": _HANDLE, "ph": _HANDLE})},
        u={"type": "array"}, sn=_BASE64, noc={"const": 1},
    ),
    "g": _object({"s": _COUNT, "at": _BASE64, "msd": _COUNT, "tl": _COUNT}, g=_URL, fa={"type": "string"}),
    "u": _object({"p": _URL}),
    "p": _object({"f": _NODES}),
    "a": {"const": 0}, "m": {"const": 0}, "d": {"const": 0}, "sml": {"const": 0},
    "l": {"anyOf": [_HANDLE, {"const": 0}]},
    "s2": _object({"r": {"type": "array", "items": {"const": 0}}}),
}  # fmt: skip
EVENT = {
    "oneOf": [
        _object({"a": {"const": "t"}, "t": _object({"f": _NODES}), "ou": _USER}, i={"type": "string"}),
        _object({"a": {"const": "d"}, "n": _HANDLE}, m={"const": 1}, i={"type": "string"}),
        _object({"a": {"const": "u"}, "n": _HANDLE, "u": _USER, "at": _BASE64, "ts": _COUNT}, i={"type": "string"}),
        _object({"a": {"const": "ph"}, "h": _HANDLE, "ph": _HANDLE}, d={"const": 1}, i={"type": "string"}),
    ]
}


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def ecb(key: bytes, data: bytes, *, decrypt: bool = False) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    return (cipher.decryptor() if decrypt else cipher.encryptor()).update(data)


def cbc(key: bytes, data: bytes, iv: bytes = bytes(16), *, decrypt: bool = False) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.CBC(iv))
    return (cipher.decryptor() if decrypt else cipher.encryptor()).update(data)


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def chunks(size_bytes: int) -> list[tuple[int, int]]:
    """Return the begin and end of each chunk of a file."""
    bounds, start, length = [], 0, 0
    while start < size_bytes:
        length = min(length + 128 * 1024, 1024 * 1024)
        bounds.append((start, min(start + length, size_bytes)))
        start += length
    return bounds


def mac_of(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Return the MAC of a file: the CBC-MAC over the CBC-MACs of its chunks, folded to 8 bytes."""
    total = bytes(16)
    for begin, end in chunks(len(data)):
        piece = data[begin:end]
        padded = piece + bytes(-len(piece) % 16)
        total = ecb(key, xor(total, cbc(key, padded, nonce * 2)[-16:]))
    return xor(total[:4], total[4:8]) + xor(total[8:12], total[12:])


def ctr(key: bytes, nonce: bytes, data: bytes, offset: int = 0) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(nonce + struct.pack(">Q", offset // 16))).encryptor().update(data)


def attributes(key: bytes, name: str) -> str:
    text = b"MEGA" + json.dumps({"n": name}).encode()
    return encode(cbc(key, text + bytes(-len(text) % 16)))


def key_v1(password: bytes) -> bytes:
    """Return the key of version 1: a constant after 65,536 rounds of AES with each 16 bytes of the password."""
    parts = [password[start : start + 16].ljust(16, b"\0") for start in range(0, len(password), 16)]
    key = bytes.fromhex("93c467e37db0c7a4d1be3f810152cb56")
    ciphers = [Cipher(algorithms.AES(part), modes.ECB()).encryptor() for part in parts]
    for _ in range(65_536):
        for cipher in ciphers:
            key = cipher.update(key)
    return key


def hash_v1(text: bytes, key: bytes) -> str:
    block = bytes(16)
    for start in range(0, len(text), 16):
        block = xor(block, text[start : start + 16].ljust(16, b"\0"))
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    for _ in range(16_384):
        block = cipher.update(block)
    return encode(block[:4] + block[8:12])


def solve(challenge: str) -> str:
    """Return the proof of work for a challenge."""
    version, easiness, _, token = challenge.split(":")
    threshold = (((int(easiness) & 63) << 1) + 1) << ((int(easiness) >> 6) * 7 + 3)
    suffix = decode(token) * 262_144
    for number in range(2**32):
        prefix = struct.pack("<I", number)
        if int.from_bytes(hashlib.sha256(prefix + suffix).digest()[:4], "big") <= threshold:
            return f"{version}:{token}:{encode(prefix)}"
    raise AssertionError("no solution")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class MegaWire:
    """A client with one persistent connection and no retries."""

    def __init__(self, endpoint: Endpoint, connection: http.client.HTTPSConnection | None = None) -> None:
        if connection is None:
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            port = urlsplit(endpoint.url).port
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.connection = connection
        self.email, self.password = endpoint.credentials["email"], endpoint.credentials["password"]
        self.session, self.master_key, self.tops = "", b"", dict[int, str]()

    def request(self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.connection.request(method, target, body, headers or {})
        answer = self.connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def raw(self, body: bytes, query: str = "id=1", **headers: str) -> Reply:
        session = f"&sid={self.session}" if self.session else ""
        return self.request("POST", f"/cs?{query}{session}", body, {"Content-Type": "application/json", **headers})

    def __call__(self, a: str, *, query: str = "id=1", **fields: Any) -> Any:
        """Send one command, check the shape of its answer, and return the answer or an error number."""
        reply = self.raw(json.dumps([{"a": a, **fields}]).encode(), query)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        answer = json.loads(reply.body)
        if isinstance(answer, list):
            (answer,) = answer
        if not (isinstance(answer, int) and answer < 0):
            jsonschema.validate(answer, SHAPES[a])
        return answer

    def login(self) -> None:
        login_info = self("us0", user=self.email)
        if login_info["v"] == 1:
            key = key_v1(self.password.encode())
            proof = hash_v1(self.email.encode(), key)
        else:
            derived = hashlib.pbkdf2_hmac("sha512", self.password.encode(), decode(login_info["s"]), 100_000, 32)
            key, proof = derived[:16], encode(derived[16:])
        body = json.dumps([{"a": "us", "user": self.email, "uh": proof}]).encode()
        reply = self.raw(body)
        if reply.status == 402:
            reply = self.raw(body, **{"X-Hashcash": solve(reply.headers["x-hashcash"])})
        (answer,) = json.loads(reply.body)
        jsonschema.validate(answer, SHAPES["us"])
        self.master_key = ecb(key, decode(answer["k"]), decrypt=True)
        private, numbers = ecb(self.master_key, decode(answer["privk"]), decrypt=True), []
        for _ in range(4):
            length = -(-struct.unpack(">H", private[:2])[0] // 8)
            numbers.append(int.from_bytes(private[2 : 2 + length], "big"))
            private = private[2 + length :]
        p, q, d, u = numbers
        assert p * u % q == 1
        decrypted = pow(int.from_bytes(decode(answer["csid"])[2:], "big"), d, p * q)
        self.session = encode(decrypted.to_bytes(-(-decrypted.bit_length() // 8), "big")[:43])
        self.tops = {node["t"]: node["h"] for node in self("f", c=1)["f"] if node["t"] > 1}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return all files and folders by name."""
        return {self.name_of(node): node for node in self("f", c=1)["f"] if node["t"] < 2}

    def keys_of(self, node: dict[str, Any]) -> tuple[bytes, bytes, bytes]:
        """Return the key, the nonce and the MAC of a node."""
        sealed = next(part.partition(":")[2] for part in node["k"].split("/") if part.startswith(node["u"]))
        key = ecb(self.master_key, decode(sealed), decrypt=True)
        return (xor(key[:16], key[16:]), key[16:24], key[24:]) if node["t"] == 0 else (key, b"", b"")

    def name_of(self, node: dict[str, Any]) -> str:
        text = cbc(self.keys_of(node)[0], decode(node["a"]), decrypt=True).rstrip(b"\0")
        assert text.startswith(b'MEGA{"')
        return str(json.loads(text[4:])["n"])

    def mkdir(self, name: str, parent: str = "", **more: Any) -> dict[str, Any]:
        key = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        entry = {"h": "xxxxxxxx", "t": 1, "a": attributes(key, name), "k": encode(ecb(self.master_key, key))}
        node: dict[str, Any] = self("p", t=parent or self.tops[2], n=[entry], **more)["f"][0]
        return node

    def upload(self, name: str, data: bytes, parent: str = "", *, replaces: str = "", **more: Any) -> Any:
        key, nonce = hashlib.md5(name.encode(), usedforsecurity=False).digest(), b"12345678"
        url, handle = self("u", s=len(data))["p"], b""
        for begin, end in chunks(len(data)) or [(0, 0)]:
            reply = self.request("POST", f"{url}/{begin}", ctr(key, nonce, data[begin:end], begin))
            assert reply.status == 200
            handle = reply.body
        full = xor(key, nonce + mac_of(key, nonce, data)) + nonce + mac_of(key, nonce, data)
        entry = {"h": handle.decode(), "t": 0, "a": attributes(key, name), "k": encode(ecb(self.master_key, full))}
        entry |= {"ov": replaces} if replaces else {}
        answer = self("p", t=parent or self.tops[2], n=[entry], **more)
        return answer["f"][0] if isinstance(answer, dict) else answer

    def download(self, node: dict[str, Any]) -> bytes:
        """Download and decrypt a file, check its MAC, and return the content."""
        answer = self("g", g=1, n=node["h"])
        data = self.request("GET", answer["g"]).body
        key, nonce, mac = self.keys_of(node)
        plain = ctr(key, nonce, data)
        assert len(plain) == answer["s"] == node["s"]
        assert mac_of(key, nonce, plain) == mac, "the MAC is wrong"
        return plain

    def events(self, sequence_number: str) -> dict[str, Any]:
        reply = self.request("POST", f"/sc?sn={sequence_number}&sid={self.session}")
        answer: dict[str, Any] = json.loads(reply.body)
        for event in answer.get("a", ()):
            jsonschema.validate(event, EVENT)
        return answer
