"""Runs as TensorBoard event files, one folder per run.

The files are written without the tensorboard package, which takes 170 MB. A file is a sequence of TFRecords: length
(8 bytes), its checksum (4), an Event message, its checksum (4); checksums are masked CRC-32C. Event and Summary are
protocol buffers: tensorflow/core/util/event.proto, framework/summary.proto.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgbo.reports.curves import drift_of
from fedgbo.reports.load import RunData
from fedgbo.reports.sections import Section, slug, unique
from fedgbo.runs.files import write_atomic
from fedgbo.runs.record import Record

LARGEST = 3.4e38  # of a float32, in which TensorBoard stores numbers
FILE = "events.out.tfevents.fedgbo"  # TensorBoard looks for "tfevents"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the wire types of protocol buffers
POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected


def write_events(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write folder/section/algorithm-seed for each run; return the files. Steps are rounds."""
    files = []
    for section in sections:
        runs = [run for line in section.lines for run in line.runs]
        labels = [f"{line.label}-seed{run.config.seed}" for line in section.lines for run in line.runs]
        for run, name in zip(runs, unique([slug(label) for label in labels]), strict=True):
            file = folder / section.slug / name / FILE
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, _events(run))
            files.append(file)
    return files


def version_event(wall_time: float) -> bytes:
    """Return the first record of every file."""
    return _record(_double(1, wall_time) + _bytes(3, b"brain.Event:2"))


def scalar_event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return a record of named numbers at a step."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _key(2, FIXED32) + struct.pack("<f", value))
        for tag, value in values.items()
    )
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


def _events(run: RunData) -> bytes:
    """Event times are the time at which run.json was written plus the seconds of the run, without pauses."""
    began = (run.path / "run.json").stat().st_mtime
    events = [scalar_event(began + r.seconds, r.round, _scalars(r)) for r in run.records]
    return version_event(began) + b"".join(events)


def _scalars(record: Record) -> dict[str, float]:
    values = {
        "score/accuracy": record.accuracy,
        "score/loss": record.loss,
        "score/train_loss": record.train_loss,
        "cost/upload_bytes": record.upload_bytes,
        "cost/download_bytes": record.download_bytes,
        "cost/flops": record.flops,
        "cost/seconds": record.seconds,
        **{f"drift/{key}": value for key, value in drift_of(record).items()},
    }
    return {key: max(-LARGEST, min(LARGEST, value)) for key, value in values.items() if value is not None}


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


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, BYTES) + _varint(len(content)) + content


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))
