"""Runs as TensorBoard event files, one folder per run.

The files are written without the tensorboard package, which takes 170 MB. A file is a sequence of TFRecords: length
(8 bytes), its checksum (4), an Event message, its checksum (4); checksums are masked CRC-32C. Event and Summary are
protocol buffers: tensorflow/core/util/event.proto, framework/summary.proto.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgbo.reports.curves import COSTS, ROUNDS, SCORES, drift_of
from fedgbo.reports.sections import Section, slug, unique
from fedgbo.runs.files import write_atomic
from fedgbo.runs.record import Record

LARGEST = 3.4e38  # of a float32, in which TensorBoard stores numbers
FILE = "events.out.tfevents.fedgbo"  # TensorBoard looks for "tfevents"
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types of protocol buffers; a field starts with number << 3 | type


def write_events(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write folder/section/algorithm-seed for each run; return the files. Steps are rounds.

    Event times are the time at which run.json was written plus the seconds of the run, without pauses.
    """
    files = []
    for section in sections:
        runs = [(f"{line.label}-seed{run.config.seed}", run) for line in section.lines for run in line.runs]
        names = unique([slug(label) for label, _ in runs])
        for name, (_, run) in zip(names, runs, strict=True):
            began = (run.path / "run.json").stat().st_mtime
            events = [
                scalar_event(began + record.seconds, record.round, record_scalars(record)) for record in run.records
            ]
            files.append(folder / section.slug / name / FILE)
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            write_atomic(files[-1], version_event(began) + b"".join(events))
    return files


def version_event(wall_time: float) -> bytes:
    """Return the first record of every file."""
    return _record(struct.pack("<Bd", 1 << 3 | DOUBLE, wall_time) + _bytes(3, b"brain.Event:2"))


def scalar_event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return a record of named numbers at a step."""
    scalars = [_bytes(1, tag.encode()) + struct.pack("<Bf", 2 << 3 | FLOAT, value) for tag, value in values.items()]
    header = struct.pack("<BdB", 1 << 3 | DOUBLE, wall_time, 2 << 3 | VARINT) + _varint(step)
    return _record(header + _bytes(5, b"".join(_bytes(1, scalar) for scalar in scalars)))


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def record_scalars(record: Record) -> dict[str, float]:
    """Return the scores, costs and drift of an evaluation by tag, such as score/loss; what is missing is left out."""
    values = {f"score/{axis.key}": getattr(record, axis.key) for axis in SCORES}
    values |= {f"cost/{cost.key}": getattr(record, cost.key) for cost in COSTS if cost.key != ROUNDS.key}
    values |= {"score/validation_loss": record.validation_loss}
    values |= {f"score/{name}": value for name, value in record.scores.items() if f"score/{name}" not in values}
    values |= {f"drift/{name}": value for name, value in drift_of(record).items()}
    return {name: max(-LARGEST, min(LARGEST, value)) for name, value in values.items() if value is not None}


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | BYTES]) + _varint(len(content)) + content


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, reflected
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))
