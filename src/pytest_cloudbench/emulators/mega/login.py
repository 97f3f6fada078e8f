"""The login of a user: keys, sessions, and the proof of work that precedes it.

The keys are derived from the password as in accounts of version 1 or 2. The service knows neither the password nor the
master key, so the emulator first derives what the service would store. It does so when a client first asks.
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
from pytest_cloudbench.emulators.http import encode_base64url
from pytest_cloudbench.emulators.mega.errors import Code, Failure

_ROUNDS_V1, _HASH_ROUNDS_V1, _ROUNDS_V2 = 0x10000, 0x4000, 100_000
_FIRST_KEY_V1 = struct.pack(">4I", 0x93C467E3, 0x7DB0C7A4, 0xD1BE3F81, 0x0152CB56)
_RSA_BITS, _SESSION_BYTES, _MAC_BYTES = 2048, 43, 16
_CASH_SLOTS, _CASH_BYTES = 262_144, 48
# The service asks for more work. With this value every second attempt succeeds, so that a login costs little.
_EASINESS = 255


def encode(data: bytes) -> str:
    """Return data in MEGA's base64, which is the variant for URLs without padding."""
    return encode_base64url(data)


def decode(text: object) -> bytes:
    """Return the data of a text in MEGA's base64. Raises Failure if it is something else."""
    try:
        if isinstance(text, str):
            return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        pass
    raise Failure(Code.EARGS)


def _block_encryptor(key: bytes) -> Any:
    """Return an encryptor of single blocks."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


def _encode_mpi(number: int) -> bytes:
    """Return a whole number in the format of OpenPGP, preceded by its length in bits."""
    return struct.pack(">H", number.bit_length()) + number.to_bytes(-(-number.bit_length() // 8), "big")


@functools.cache
def _rsa_key_pair() -> Any:
    """Return the key pair that all accounts of this process share.

    Making one takes a tenth of a second, and no client compares the keys of two accounts.
    """
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, _RSA_BITS).private_numbers()


class User:
    """The only user of the account.

    Args:
        tokens: makes random names. One seed gives the same names, so a session outlives a reset of the emulator.
        version: the version of the account, 1 or 2.

    Attributes:
        email: the user's name at login.
        password: the password, from which clients derive their keys.
        user: the handle of the user.
    """

    def __init__(self, tokens: Tokens, version: int) -> None:
        self.email, self.password = "emulated@example.com", tokens.next("emulated-", 20)
        self.user = tokens.next("", 11)
        self.version = version
        self._salt, self._master_key = (tokens.next("", 32).encode()[:16] for _ in range(2))
        self._session_key = tokens.next("", 32).encode()
        self._session_count = 0
        self._verified_sessions: set[str] = set()
        self._ended_sessions: set[str] = set()

    # ---------------------------------------------------------------- login

    def prelogin(self, email: object) -> dict[str, Any]:
        """Return the version of the account, and its salt. Raises Failure for another email address."""
        if email != self.email:
            raise Failure(Code.ENOENT)
        return {"v": 1} if self.version == 1 else {"v": 2, "s": encode(self._salt)}

    def login(self, email: object, proof: object, session_key: object) -> dict[str, Any]:
        """Return the keys of the account, and a new session that they decrypt. Raises Failure if the proof is wrong."""
        expected = self._derive_keys()[1]
        if email != self.email or not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), expected):
            raise Failure(Code.ENOENT)
        answer = {**self.encrypted_keys(), "csid": self._new_session(), "u": self.user, "ach": 1}
        return answer | ({"sek": session_key} if session_key is not None else {})

    def encrypted_keys(self) -> dict[str, Any]:
        """Return the master key and the private key, encrypted in the way the service stores them."""
        key, numbers = self._derive_keys()[0], _rsa_key_pair()
        p, q = numbers.p, numbers.q
        private = b"".join(map(_encode_mpi, (p, q, numbers.d, pow(p, -1, q))))
        private += bytes(-len(private) % 16)
        return {
            "k": encode(_block_encryptor(key).update(self._master_key)),
            "privk": encode(_block_encryptor(self._master_key).update(private)),
        }

    def public_key(self) -> str:
        """Return the public key in the format of the API."""
        numbers = _rsa_key_pair().public_numbers
        return encode(_encode_mpi(numbers.n) + _encode_mpi(numbers.e))

    # ---------------------------------------------------------------- sessions

    def is_open(self, session: str) -> bool:
        """Return whether a session was issued to a client and has not ended."""
        if session not in self._verified_sessions:
            try:
                data = decode(session)
            except Failure:
                return False
            body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
            if len(data) != _SESSION_BYTES or not hmac.compare_digest(mac, self._session_mac(body)):
                return False
            self._verified_sessions.add(session)
        return session not in self._ended_sessions

    def end_session(self, session: str) -> None:
        """Log out the client with this session."""
        self._ended_sessions.add(session)

    def _new_session(self) -> str:
        self._session_count += 1
        payload = b"\x01" + hashlib.sha256(self._session_key + struct.pack(">Q", self._session_count)).digest()
        body = payload[: _SESSION_BYTES - _MAC_BYTES]
        numbers = _rsa_key_pair().public_numbers
        padded = (body + self._session_mac(body)).ljust(_RSA_BITS // 8 - 1, b"\x5a")  # must stay below the modulus
        return encode(_encode_mpi(pow(int.from_bytes(padded, "big"), numbers.e, numbers.n)))

    def _derive_keys(self) -> tuple[bytes, bytes]:
        return _derive_keys(self.version, self.email, self.password, self._salt)

    def _session_mac(self, body: bytes) -> bytes:
        return hmac.digest(self._session_key, body, "sha256")[:_MAC_BYTES]


@functools.cache
def _derive_keys(version: int, email: str, password: str, salt: bytes) -> tuple[bytes, bytes]:
    """Return the key derived from a password, and the proof that a client sends. It takes a tenth of a second."""
    if version == 1:
        key = _password_key_v1(password.encode())
        return key, _login_hash_v1(email.encode(), key).encode()
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS_V2, 32)
    return derived[:16], encode(derived[16:]).encode()


def _password_key_v1(password: bytes) -> bytes:
    ciphers = [_block_encryptor(password[start : start + 16].ljust(16, b"\0")) for start in range(0, len(password), 16)]
    key = _FIRST_KEY_V1
    for _ in range(_ROUNDS_V1):
        for cipher in ciphers:
            key = cipher.update(key)
    return key


def _login_hash_v1(text: bytes, key: bytes) -> str:
    folded = bytearray(16)
    for position, value in enumerate(text):
        folded[position % 16] ^= value
    cipher, block = _block_encryptor(key), bytes(folded)
    for _ in range(_HASH_ROUNDS_V1):
        block = cipher.update(block)
    return encode(block[:4] + block[8:12])


class Hashcash:
    """The proof of work that the service has demanded before a login since February 2025."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._open_challenges: set[str] = set()

    def new_challenge(self, now_s: float) -> bytes:
        """Return a new challenge, which is the value of ``X-Hashcash``."""
        token = self._tokens.next("", 64)
        self._open_challenges.add(token)
        return f"1:{_EASINESS}:{int(now_s)}:{token}".encode()

    def accepts_proof(self, header: bytes) -> bool:
        """Return whether a client has done the work for a challenge. A challenge can be used once."""
        version, _, fields = header.decode("latin-1").partition(":")
        token, _, prefix_text = fields.partition(":")
        if version != "1" or token not in self._open_challenges:
            return False
        try:
            prefix = decode(prefix_text)
        except Failure:
            return False
        if len(prefix) != 4:
            return False
        self._open_challenges.discard(token)
        digest = hashlib.sha256(prefix + decode(token).ljust(_CASH_BYTES, b"\0") * _CASH_SLOTS).digest()
        bound = (((_EASINESS & 63) << 1) + 1) << ((_EASINESS >> 6) * 7 + 3)
        return int.from_bytes(digest[:4], "big") <= bound
