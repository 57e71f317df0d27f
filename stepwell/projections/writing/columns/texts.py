"""Judges and compares texts where they lie, eight bytes of every record at a time.

The tricks with words are the usual ones ("Bit Twiddling Hacks", "determine if a word has a byte less than n"); each
is true of a byte of the word exactly where it says.
"""

from collections.abc import Iterator

import numpy as np

from stepwell.projections.writing.columns.avro import Bytes, Flags, Ints, Places, Words, words_at

__all__ = ["are_ascii", "are_equal", "are_hex", "are_printable", "hashes", "mixed", "short_words"]

_EACH = 0x0101010101010101
_HIGH = np.uint64(0x80 * _EACH)
_SPACES = np.uint64(0x20 * _EACH)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEPT = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks for the first so many bytes of a word."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def are_ascii(buffer: Bytes | bytes, places: Places) -> Flags:
    """Which texts hold ASCII characters only, control characters among them."""
    bad = np.zeros(len(places.sizes), np.uint64)
    for word, kept in _words(buffer, places):
        bad |= word & kept
    clean: Flags = (bad & _HIGH) == 0
    return clean


def are_printable(buffer: Bytes | bytes, places: Places) -> Flags:
    """Which texts hold printable ASCII characters only (0x20 to 0x7E)."""
    bad = np.zeros(len(places.sizes), np.uint64)
    for found, kept in _words(buffer, places):
        word = (found & kept) | (_SPACES & ~kept)
        # Above 0x7F, 0x7F itself, below 0x20.
        bad |= word | (word + np.uint64(_EACH)) | ((word - _SPACES) & ~word)
    clean: Flags = (bad & _HIGH) == 0
    return clean


def are_hex(buffer: Bytes | bytes, places: Places, size: int) -> Flags:
    """Which texts are ``size`` lower-case hexadecimal digits, not all of them zero. ``size``: a multiple of 8."""
    bad = (places.sizes != size).astype(np.uint64)
    some = np.zeros(len(bad), np.uint64)
    for number in range(size // 8):
        word = words_at(buffer, places.starts + 8 * number)
        some |= word ^ np.uint64(0x30 * _EACH)
        bad |= word & _HIGH
        word = word & ~_HIGH
        # "a" to "f" become "0" to "5", and are told from digits by the bit that letters have.
        letter = (word >> np.uint64(6)) & np.uint64(_EACH)
        digit = word - letter * np.uint64(0x31)
        bad |= (digit ^ np.uint64(0x30 * _EACH)) & np.uint64(0xF0 * _EACH)
        # At most 9, of letters at most 5: with 6 (and 4) more none reaches 16.
        bad |= ((digit & np.uint64(0x0F * _EACH)) + letter * np.uint64(4) + np.uint64(6 * _EACH)) & np.uint64(
            0x10 * _EACH
        )
    plain: Flags = (bad == 0) & (some != 0)
    return plain


def are_equal(buffer: Bytes | bytes, places: Places, others: Bytes | bytes, elsewhere: Places) -> Flags:
    """Which texts have the same bytes as those of another buffer."""
    unlike = (places.sizes != elsewhere.sizes).astype(np.uint64)
    for number, (word, kept) in enumerate(_words(buffer, places)):
        unlike |= (word ^ words_at(others, elsewhere.starts + 8 * number)) & kept
    equal: Flags = unlike == 0
    return equal


def hashes(buffer: Bytes | bytes, places: Places) -> Words:
    """A hash of each text; equal texts of one call have equal ones."""
    found = places.sizes.astype(np.uint64)
    for word, kept in _words(buffer, places):
        found = mixed(found, word & kept)
    return found


def mixed(found: Words, more: Words) -> Words:
    """The hashes with a further number each."""
    found = (found ^ more) * _MULTIPLIER
    return found ^ (found >> np.uint64(32))


def short_words(buffer: Bytes | bytes, places: Places) -> Words:
    """Texts of at most 8 bytes as one number each, little-endian; of longer ones 0."""
    word = words_at(buffer, places.starts) & _KEPT.take(places.sizes, mode="clip")
    word[places.sizes > 8] = 0
    return word


def _words(buffer: Bytes | bytes, places: Places) -> Iterator[tuple[Words, Words | np.uint64]]:
    """The texts' next 8 bytes, until the longest ends, and masks of those that belong to each text."""
    sizes: Ints = places.sizes
    if not len(sizes):
        return
    shortest = int(sizes.min())
    for begin in range(0, int(sizes.max()), 8):
        kept = _FULL if shortest >= begin + 8 else _KEPT.take(sizes - begin, mode="clip")
        yield words_at(buffer, places.starts + begin), kept
