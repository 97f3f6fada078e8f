"""Who may use the account: keys, sessions, and the proof of work before a login.

What may live here: what is computed from the password, as both versions of accounts do it. The service knows neither
password nor master key; the emulator derives what a service would store. Nothing is computed before a client asks.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import struct
from typing import Any

from pytest_cloudbench.emulators.core import Tokens
from pytest_cloudbench.emulators.mega.errors import Code, Failure

_ROUNDS_V1, _HASH_ROUNDS_V1, _ROUNDS_V2 = 0x10000, 0x4000, 100_000
_FIRST_KEY_V1 = struct.pack(">4I", 0x93C467E3, 0x7DB0C7A4, 0xD1BE3F81, 0x0152CB56)
_RSA_BITS, _SESSION_BYTES, _MAC_BYTES = 2048, 43, 16
_CASH_SLOTS, _CASH_BYTES = 262_144, 48
# Every second attempt succeeds, so a login costs little; the service asks for more work.
_EASINESS = 255


def encode(data: bytes) -> str:
    """Returns base64 as MEGA writes it: for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: object) -> bytes:
    """Read such base64. Raises Failure if the text is not base64."""
    try:
        if isinstance(text, str):
            return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        pass
    raise Failure(Code.EARGS)


def _aes(key: bytes) -> Any:
    """Returns an encryptor of single blocks."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def _mpi(number: int) -> bytes:
    """Returns a whole number with its length in bits, as OpenPGP writes it."""
    return struct.pack(">H", number.bit_length()) + number.to_bytes(-(-number.bit_length() // 8), "big")


@functools.cache
def _rsa() -> Any:
    """The process's key pair: making one takes a tenth of a second, and no client compares it with another."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, _RSA_BITS).private_numbers()


class User:
    """The one user.

    Args:
        tokens: random names, the same for one seed: a session outlives a reset of the emulator.
        version: 1 or 2.

    Attributes:
        email: the user's name at login.
        password: what a client derives its keys from.
        user: the user's handle.
    """

    def __init__(self, tokens: Tokens, version: int) -> None:
        self.email, self.password = "emulated@example.com", tokens.next("emulated-", 20)
        self.user = tokens.next("", 11)
        self.version = version
        self._salt, self._master_key = (tokens.next("", 32).encode()[:16] for _ in range(2))
        self._session_key = tokens.next("", 32).encode()
        self._sessions = 0
        self._checked: set[str] = set()
        self._ended: set[str] = set()

    # ---------------------------------------------------------------- the answers

    def prelogin(self, email: object) -> dict[str, Any]:
        """Returns the version of the account, and its salt. Raises Failure."""
        if email != self.email:
            raise Failure(Code.ENOENT)
        return {"v": 1} if self.version == 1 else {"v": 2, "s": encode(self._salt)}

    def login(self, email: object, proof: object, session_key: object) -> dict[str, Any]:
        """Returns the keys of the account, and a new session that only they open. Raises Failure."""
        expected = self._derived()[1]
        if email != self.email or not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), expected):
            raise Failure(Code.ENOENT)
        answer = {**self.keys(), "csid": self._new_session(), "u": self.user, "ach": 1}
        return answer | ({"sek": session_key} if session_key is not None else {})

    def keys(self) -> dict[str, Any]:
        """Returns the master key and the private key, encrypted as the service stores them."""
        key, numbers = self._derived()[0], _rsa()
        p, q = numbers.p, numbers.q
        private = b"".join(map(_mpi, (p, q, numbers.d, pow(p, -1, q))))
        private += bytes(-len(private) % 16)
        return {
            "k": encode(_aes(key).update(self._master_key)),
            "privk": encode(_aes(self._master_key).update(private)),
        }

    def public_key(self) -> str:
        """Returns the public key."""
        numbers = _rsa().public_numbers
        return encode(_mpi(numbers.n) + _mpi(numbers.e))

    # ---------------------------------------------------------------- sessions

    def is_open(self, session: str) -> bool:
        """Returns whether a session was given to a client and has not ended."""
        if session not in self._checked:
            try:
                data = decode(session)
            except Failure:
                return False
            body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
            if len(data) != _SESSION_BYTES or not hmac.compare_digest(mac, self._mac(body)):
                return False
            self._checked.add(session)
        return session not in self._ended

    def end(self, session: str) -> None:
        """Log out."""
        self._ended.add(session)

    def _new_session(self) -> str:
        self._sessions += 1
        begin = b"\x01" + hashlib.sha256(self._session_key + struct.pack(">Q", self._sessions)).digest()
        body = begin[: _SESSION_BYTES - _MAC_BYTES]
        numbers = _rsa().public_numbers
        padded = (body + self._mac(body)).ljust(_RSA_BITS // 8 - 1, b"\x5a")  # shorter than the modulus
        return encode(_mpi(pow(int.from_bytes(padded, "big"), numbers.e, numbers.n)))

    def _derived(self) -> tuple[bytes, bytes]:
        return _derived(self.version, self.email, self.password, self._salt)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._session_key, body, "sha256")[:_MAC_BYTES]


@functools.cache
def _derived(version: int, email: str, password: str, salt: bytes) -> tuple[bytes, bytes]:
    """Returns the key that a password gives, and the proof that a client sends. It takes a tenth of a second."""
    if version == 1:
        key = _password_key_v1(password.encode())
        return key, _hash_v1(email.encode(), key).encode()
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS_V2, 32)
    return derived[:16], encode(derived[16:]).encode()


def _password_key_v1(password: bytes) -> bytes:
    ciphers = [_aes(password[start : start + 16].ljust(16, b"\0")) for start in range(0, len(password), 16)]
    key = _FIRST_KEY_V1
    for _ in range(_ROUNDS_V1):
        for cipher in ciphers:
            key = cipher.update(key)
    return key


def _hash_v1(text: bytes, key: bytes) -> str:
    folded = bytearray(16)
    for place, value in enumerate(text):
        folded[place % 16] ^= value
    cipher, block = _aes(key), bytes(folded)
    for _ in range(_HASH_ROUNDS_V1):
        block = cipher.update(block)
    return encode(block[:4] + block[8:12])


class Hashcash:
    """The proof of work that the service asks for before a login (since February 2025)."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._open: set[str] = set()

    def challenge(self, now_s: float) -> bytes:
        """Returns a new challenge, the value of ``X-Hashcash``."""
        token = self._tokens.next("", 64)
        self._open.add(token)
        return f"1:{_EASINESS}:{int(now_s)}:{token}".encode()

    def accepts(self, header: bytes) -> bool:
        """Returns whether a client has done the work; each challenge counts once."""
        version, _, rest = header.decode("latin-1").partition(":")
        token, _, prefix_text = rest.partition(":")
        if version != "1" or token not in self._open:
            return False
        try:
            prefix = decode(prefix_text)
        except Failure:
            return False
        if len(prefix) != 4:
            return False
        self._open.discard(token)
        found = hashlib.sha256(prefix + decode(token).ljust(_CASH_BYTES, b"\0") * _CASH_SLOTS).digest()
        bound = (((_EASINESS & 63) << 1) + 1) << ((_EASINESS >> 6) * 7 + 3)
        return int.from_bytes(found[:4], "big") <= bound
