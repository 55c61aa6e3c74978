"""Which hash seed a Python runs under, told from a hash that it made. Pure.

CPython hashes text by SipHash under a key that it makes from `PYTHONHASHSEED`. So a hash proves the seed, whatever the
variable says: a `-R`, an `-I`, an embedding or a changed environment would show.
"""

from __future__ import annotations

from collections.abc import Iterable

ROUNDS = {"siphash24": (2, 4), "siphash13": (1, 3)}
"""By `sys.hash_info.algorithm`: rounds for each word, and at the end."""

_MASK = (1 << 64) - 1
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def seed_of(made: int, text: str, algorithm: str, candidates: Iterable[int]) -> int | None:
    """The seed, of `candidates`, under which a 64-bit CPython hashes the ASCII `text` to `made`. None: none of them."""
    return next((seed for seed in candidates if hash_under(seed, text, algorithm) == made), None)


def hash_under(seed: int, text: str, algorithm: str) -> int:
    """What `hash(text)` is under `PYTHONHASHSEED=seed`. Raises `KeyError` for an algorithm that is not in `ROUNDS`."""
    made = _siphash(_key(seed), text.encode("ascii"), *ROUNDS[algorithm])
    signed = made - (1 << 64) if made >> 63 else made
    return -2 if signed == -1 else signed  # -1 means an error to CPython


def _key(seed: int) -> tuple[int, int]:
    """CPython's `lcg_urandom` (Python/bootstrap_hash.c): 16 bytes of a linear congruential generator; 0 means zeros."""
    if seed == 0:
        return 0, 0
    made, x = bytearray(), seed
    for _ in range(16):
        x = (x * 214013 + 2531011) & 0xFFFFFFFF
        made.append(x >> 16 & 0xFF)
    return int.from_bytes(made[:8], "little"), int.from_bytes(made[8:], "little")


def _siphash(key: tuple[int, int], data: bytes, per_word: int, at_the_end: int) -> int:
    state = [key[at % 2] ^ word for at, word in enumerate(_START)]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        for _ in range(per_word):
            _round(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(at_the_end):
        _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & _MASK
    v[2] = (v[2] + v[3]) & _MASK
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] = _rotate(v[0], 32)
    v[2] = (v[2] + v[1]) & _MASK
    v[0] = (v[0] + v[3]) & _MASK
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] = _rotate(v[2], 32)


def _rotate(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & _MASK
