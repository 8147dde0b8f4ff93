"""TensorBoard's event files, written by hand: the tensorboard package brings 170 MB for what is a few bytes a number.

A file is a sequence of TFRecords: length (8 bytes), its checksum (4), an Event message, its checksum (4); checksums are
CRC-32C, masked. Event and Summary are protocol buffers: tensorflow/core/util/event.proto, framework/summary.proto.
"""

import struct
from collections.abc import Mapping

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the wire types of protocol buffers
POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


def version_event(wall_time: float) -> bytes:
    """Return the record that a file begins with."""
    return _record(_double(1, wall_time) + _bytes(3, b"brain.Event:2"))


def scalar_event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return a record of named numbers at a step."""
    summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
    return _record(_double(1, wall_time) + _key(2, VARINT) + _varint(step) + _bytes(5, summary))


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _key(field: int, wire: int) -> bytes:
    return bytes([field << 3 | wire])


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


def _double(field: int, value: float) -> bytes:
    return _key(field, FIXED64) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _key(field, FIXED32) + struct.pack("<f", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, BYTES) + _varint(len(content)) + content


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))
