"""Shakespeare: next characters by play and speaker, from Project Gutenberg's text or from LEAF's JSON.

Samples are windows one character apart, so the text is stored once and a client is a run of windows in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.archives import SourceFile, source_files
from fedgbo.data.characters import encode
from fedgbo.data.leaf import LeafFiles, LeafUser, check_same_users, leaf_files, users
from fedgbo.data.packed import Packed
from fedgbo.data.plays import HEADING, speakers
from fedgbo.data.store import Array
from fedgbo.data.windows import WINDOW

FRACTION = 0.9  # LEAF's default, which gives the paper's 660 clients; at the 0.8 that the paper names there are 799
LARGEST_TEXT = 1 << 26


@dataclass
class Runs:
    """Texts that grow one after the other, and the runs of windows in them."""

    texts: list[Array] = field(default_factory=list)
    size: int = 0

    def add(self, text: Array) -> int:
        """Append a text; return where it starts."""
        self.texts.append(text)
        self.size += len(text)
        return self.size - len(text)


Half = dict[str, list[tuple[int, int]]]  # by client: (start in the text, number of windows) of each run


def read_shakespeare(source: Path, fraction: float | None = None) -> Packed:
    """Read the raw text if there is one, else LEAF's JSON; `fraction` of a speaker's windows is for training."""
    raw = _raw_texts(source)
    if raw:
        return pack_text(raw[0], FRACTION if fraction is None else fraction)
    files = leaf_files(source, "Project Gutenberg's text (.txt)")
    if fraction is not None:
        raise ConfigError(
            f"{source} has no raw text, and its JSON files are split already; leave out the fraction, or give the text"
        )
    return _pack_json(files, source)


def pack_text(file: SourceFile, fraction: float) -> Packed:
    """Split the raw text by speakers, and each speaker's windows into the first for training, the last for testing."""
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction must be between 0 and 1, not {fraction!r}; 0.9 gives the paper's 660 clients")
    with file.open() as stream:
        text = stream.read().decode("latin-1")
    if not text:
        raise DataError(f"{file.where} is empty; get it again")
    runs, train, test = Runs(), Half(), Half()
    for name, said in speakers(text, file.where).items():
        samples = len(said) - WINDOW
        kept = 1 if samples == 2 else max(1, int(fraction * samples))
        skipped = kept + WINDOW - 1  # the windows that overlap the cut belong to neither part
        if samples >= 2 and samples > skipped:
            start = runs.add(encode(said, f"{file.where}, speaker {name}"))
            train[name], test[name] = [(start, kept)], [(start + skipped, samples - skipped)]
    if not train:
        raise DataError(f"{file.where} has no speaker with enough text at the fraction {fraction}")
    return _packed(runs, train, test, file.where, fraction)


def _raw_texts(source: Path) -> list[SourceFile]:
    """Find the raw text: the file itself, or the one text with Shakespeare's headings among the files."""
    files = source_files(source)
    if len(files) == 1 and not files[0].name.endswith(".json"):
        return files
    found = []
    for file in files:
        if file.name.endswith(".txt"):
            with file.open() as stream:
                if stream.read(LARGEST_TEXT).count(HEADING.encode()) > 1:
                    found.append(file)
    if len(found) > 1:
        raise DataError(f"{source} has several texts: {', '.join(f.where for f in found)}; give the path of one")
    return found


def _pack_json(files: LeafFiles, source: Path) -> Packed:
    runs = Runs()
    train, test = _half(files.train, runs), _half(files.test, runs)
    check_same_users(train, test, source)
    return _packed(runs, train, {name: test[name] for name in train}, str(source), None)


def _half(files: Iterable[SourceFile], runs: Runs) -> Half:
    half = Half()
    for user in users(files):
        text, counts = _texts(user)
        starts = runs.add(text) + np.cumsum([0, *(counts[:-1] + WINDOW)])
        half[user.name] = list(zip(starts.tolist(), counts.tolist(), strict=True))
    return half


def _texts(user: LeafUser) -> tuple[Array, Array]:
    """Rebuild the texts that the windows were cut from, one for each run of overlapping windows."""
    for k, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not isinstance(x, str) or not isinstance(y, str) or len(x) != WINDOW or len(y) != 1:
            raise DataError(f"{user.where}: sample {k} is not {WINDOW} characters and the next one")
    windows = encode("".join(user.x), user.where).reshape(-1, WINDOW)
    targets = encode("".join(user.y), user.where)
    follows = (windows[1:, :-1] == windows[:-1, 1:]).all(axis=1) & (windows[1:, -1] == targets[:-1])
    firsts = np.flatnonzero(np.concatenate([[True], ~follows]))
    lasts = np.append(firsts[1:], len(targets))
    pieces = [part for a, b in zip(firsts, lasts, strict=True) for part in (windows[a], targets[a:b])]
    return np.concatenate(pieces), lasts - firsts


def _packed(runs: Runs, train: Half, test: Half, source: str, fraction: float | None) -> Packed:
    arrays: dict[str, Array] = {"text": np.concatenate(runs.texts), "client_names": np.array(list(train))}
    for role, half in (("train", train), ("test", test)):
        every = np.array([run for client in half.values() for run in client], dtype=np.int64)  # (runs, 2)
        sizes = [sum(count for _, count in client) for client in half.values()]
        arrays[f"{role}_starts"], arrays[f"{role}_counts"] = every[:, 0], every[:, 1]
        arrays[f"{role}_offsets"] = np.cumsum([0, *sizes], dtype=np.int64)
    return Packed(arrays, {"task": "shakespeare", "source": source, "synthetic": False, "fraction": fraction})
