"""How fast clients are, and when they are available, on a virtual clock: a random model, or a trace in a CSV file.

Both are functions of the settings alone, so that a run can be repeated, and resumed bit for bit.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedgbo.core import ConfigError, stream

SPEEDS = ("seconds", "seconds_per_sample", "bandwidth")
TIMES = ("on", "off")
DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Device:
    """One client's device. Times are in seconds since the run began."""

    seconds: float = 0.0  # of a round's training, whatever it asks
    per_sample: float = 0.0  # seconds for a gradient of one sample
    per_byte: float = 0.0  # seconds for a byte that travels, down or up
    shifts: tuple[tuple[float, float], ...] = ((0.0, math.inf),)  # when it is on: [begin, end), in ascending order
    period: float = math.inf  # after which the shifts begin again

    def shift(self, now: float) -> tuple[float, float]:
        """Return when the device is next on, which may be now, and until when; infinity for never.

        >>> Device(shifts=((2.0, 4.0),), period=10.0).shift(13.0)
        (13.0, 14.0)
        """
        lap = 0 if math.isinf(self.period) else math.floor(now / self.period)
        for start in [0.0] if math.isinf(self.period) else [(lap + k) * self.period for k in (-1, 0, 1)]:
            for begin, end in self.shifts:
                if start + end > now:
                    return max(now, start + begin), start + end
        return math.inf, math.inf


@dataclass(frozen=True)
class Model:
    """Random devices. A speed is its median times e^(spread z), with a normal z for each client.

    A round takes one second in the median or, with `seconds_per_sample`, as long as its gradients. With `available`
    below 1 a client is on for this share of each period, from a random time of the period on.
    """

    spread: float
    seconds_per_sample: float | None
    bandwidth: float | None
    available: float
    period: float
    seed: int

    def device(self, client: int) -> Device:
        """Return a client's device."""
        factor = self._factor("speed", client)
        per_byte = 0.0 if self.bandwidth is None else 1 / (self.bandwidth * self._factor("bandwidth", client))
        shifts: dict[str, object] = {}
        if self.available < 1:
            begin = float(stream(self.seed, "available from", client).uniform(0, self.period))
            shifts = {"shifts": ((begin, begin + self.available * self.period),), "period": self.period}
        if self.seconds_per_sample is None:
            return Device(seconds=factor, per_byte=per_byte, **shifts)  # type: ignore[arg-type]
        return Device(per_sample=self.seconds_per_sample * factor, per_byte=per_byte, **shifts)  # type: ignore[arg-type]

    def _factor(self, purpose: str, client: int) -> float:
        return float(np.exp(self.spread * stream(self.seed, purpose, client).normal()))


def read_trace(file: str, clients: int, period: float | None) -> list[Device]:
    """Return the devices of a CSV file: docs/algorithms.md describes its columns."""
    speeds: dict[int, dict[str, float]] = {}
    shifts: dict[int, list[tuple[float, float]]] = {}
    for line, row in _rows(file):
        client = _number(file, line, "client", row["client"])
        if client != int(client) or client < 0:
            raise ConfigError(
                f"{file}, line {line}: client must be a whole number of at least 0, not {row['client']!r}"
            )
        own = speeds.setdefault(int(client), {})
        for name in SPEEDS:
            if text := row.get(name):
                value = _number(file, line, name, text, least=0.0)
                if own.setdefault(name, value) != value:
                    raise ConfigError(f"{file}, line {line}: client {client:g} has another {name} in an earlier line")
        times = [_number(file, line, name, row[name]) for name in TIMES if row.get(name)]
        if len(times) == 1 or (times and not 0 <= times[0] < times[1] <= (period or math.inf)):
            most = "" if period is None else f" and at most the period, {period:g}"
            raise ConfigError(f"{file}, line {line}: on and off must be numbers of seconds with 0 <= on < off{most}")
        known = shifts.get(int(client))
        if known is not None and bool(known) != bool(times):
            raise ConfigError(f"{file}, line {line}: client {client:g} has on and off in some lines only")
        shifts.setdefault(int(client), []).extend([(times[0], times[1])] if times else [])
    return [_device(file, client, speeds.get(client), shifts.get(client, []), period) for client in range(clients)]


def digest(file: str) -> str:
    """Return a digest of a trace, so that a run is not resumed with another one."""
    return sha256(_content(file).encode()).hexdigest()


def _device(
    file: str, client: int, speed: dict[str, float] | None, shifts: list[tuple[float, float]], period: float | None
) -> Device:
    if speed is None:
        raise ConfigError(f"the trace {file} has no row for client {client}; it needs one for every client")
    if not speed.keys() & {"seconds", "seconds_per_sample"}:
        raise ConfigError(f"the trace {file} has neither seconds nor seconds_per_sample for client {client}")
    shifts = sorted(shifts)
    if any(end > begin for (_, end), (begin, _) in pairwise(shifts)):
        raise ConfigError(f"the trace {file} has overlapping times of availability for client {client}")
    return Device(
        seconds=speed.get("seconds", 0.0),
        per_sample=speed.get("seconds_per_sample", 0.0),
        per_byte=1 / speed["bandwidth"] if "bandwidth" in speed else 0.0,
        shifts=tuple(shifts) or ((0.0, math.inf),),
        period=math.inf if period is None or not shifts else period,
    )


def _rows(file: str) -> Iterable[tuple[int, dict[str, str]]]:
    """Yield the rows of a trace with the numbers of their lines."""
    reader = csv.reader(_content(file).splitlines())
    heading = [name.strip() for name in next(reader, [])]
    allowed = ("client", *SPEEDS, *TIMES)
    if "client" not in heading or len(set(heading)) < len(heading) or not set(heading) <= set(allowed):
        raise ConfigError(
            f"the first line of the trace {file} must name its columns: client, seconds or seconds_per_sample, and "
            f"optionally bandwidth, on and off; it is {','.join(heading)[:80]!r}"
        )
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(heading):
            raise ConfigError(
                f"{file}, line {reader.line_num}: {len(cells)} cells, but there are {len(heading)} columns"
            )
        yield reader.line_num, {name: cell.strip() for name, cell in zip(heading, cells, strict=True)}


def _content(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8-sig")  # Excel begins a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace {file} cannot be read: {error}") from error


def _number(file: str, line: int, name: str, text: str, least: float | None = None) -> float:
    """Read a finite number, above `least` if that is given."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (least is not None and value <= least):
        above = "" if least is None else f" above {least:g}"
        raise ConfigError(f"{file}, line {line}: {name} must be a number{above}, not {text!r}")
    return value
