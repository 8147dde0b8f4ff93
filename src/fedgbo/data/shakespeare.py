"""Reads and opens Shakespeare: next characters by play and speaker, from Project Gutenberg's text or LEAF's JSON.

Samples are windows one character apart, so the text is stored once and a client is a run of windows in it. The raw
text is split by LEAF's procedure with its quirks, such as a first play that is skipped and a play without indentation
that has its own rules: the published clients only result with them.
"""

import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fedgbo.core import ConfigError, DataError
from fedgbo.data.archives import SourceFile, raw_file
from fedgbo.data.federated import FederatedData
from fedgbo.data.leaf import LeafUser, check_same_users, leaf_files, users
from fedgbo.data.samples import WINDOW, WindowSamples
from fedgbo.data.store import Array, Packed

FRACTION = 0.9  # LEAF's default, which gives the paper's 660 clients; the 0.8 that the paper states gives 799
LARGEST_TEXT = 1 << 26
EDITION = "Project Gutenberg's etext 100 in its version of 1994"
HEADING = "by William Shakespeare"
LINES = 124_196  # without the first line; later ones are not Shakespeare
UNINDENTED = "THE COMEDY OF ERRORS"
SPEECH = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")
SPEECH_UNINDENTED = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")
INDENT = "    "
VOCABULARY = " !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
UNKNOWN = 255
_NUMBERS = np.full(256, UNKNOWN, dtype=np.uint8)
_NUMBERS[np.frombuffer(VOCABULARY.encode("ascii"), dtype=np.uint8)] = np.arange(len(VOCABULARY))

Runs = dict[str, list[tuple[int, int]]]  # by client: (start in the text, number of windows) of each run


def read_shakespeare(source: Path, fraction: float | None = None) -> Packed:
    """Read the raw text if there is one, else LEAF's JSON; `fraction` of a speaker's windows is for training."""
    raw = raw_file(source, _raw_texts, "texts")
    if raw is not None:
        return _pack_text(raw, FRACTION if fraction is None else fraction)
    train_files, test_files = leaf_files(source, "Project Gutenberg's text (.txt)")
    if fraction is not None:
        raise ConfigError(f"{source}: the JSON files are split already; leave out the fraction, or give the raw text")
    texts: list[Array] = []
    train, test = _runs(train_files, texts), _runs(test_files, texts)
    check_same_users(train, test, source)
    return _pack(texts, train, {name: test[name] for name in train}, str(source), None)


def window_data(arrays: Mapping[str, Array], where: str) -> FederatedData:
    """Open the arrays of `read_shakespeare` or of the synthetic data; `where` names them in errors."""
    return FederatedData.from_packed(
        arrays, where, lambda half: WindowSamples(arrays["text"], arrays[f"{half}_starts"], arrays[f"{half}_counts"])
    )


def encode(text: str, where: str) -> Array:
    """Return the characters' numbers, 0 to 78, in the paper's vocabulary; `where` names the text in errors.

    >>> encode("Ay, no.", "here").tolist()
    [24, 76, 7, 0, 65, 66, 9]
    """
    numbers = _NUMBERS[np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)]
    unknown = (numbers == UNKNOWN) | (np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) > UNKNOWN)
    if unknown.any():
        at = int(np.argmax(unknown))
        found = f"{where}: {text[at]!r} after {text[max(0, at - 20) : at]!r}"
        raise DataError(f"{found} is none of the 79 characters of the paper; this is another text or edition")
    return numbers


def decode(numbers: Array) -> str:
    """Return the text of the numbers."""
    return "".join(VOCABULARY[n] for n in numbers)


def speakers(text: str, where: str) -> dict[str, str]:
    """Return each client's text by the client's name ("<play>_<speaker>"), in the order of the plays.

    The plays start 5 lines above the second heading.
    """
    lines = text.replace("\r\n", "\n").split("\n")[1:]
    headings = [k for k, line in enumerate(lines) if HEADING in line]
    if len(headings) < 2:
        raise DataError(f"{where} has {len(headings)} lines with {HEADING!r} where many are expected; give {EDITION}")
    if len(lines) < LINES:
        few = f"{where} has {len(lines)} lines after the first, and {LINES} are needed"
        raise DataError(f"{few}: it was cut short, or is not {EDITION}")
    lines = lines[max(0, headings[1] - 5) : LINES]
    starts = [k for k, line in enumerate(lines) if HEADING in line]
    texts: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        above = (lines[k].strip() for k in range(start - 2, max(-1, start - 8), -1))
        title = next((line for line in above if line), "")
        cast = _speeches(lines[start + 1 : end], unindented=title == UNINDENTED)
        for speaker, snippets in cast.items():
            if len(cast) > 1 and len(snippets) > 2:
                name = re.sub(r"\W+", "_", f"{title}_{speaker}".replace(" ", "_"))
                texts[name] = re.sub(r"  +", " ", "".join(snippet + " " for snippet in snippets))
    return texts


def _speeches(lines: list[str], *, unindented: bool) -> dict[str, list[str]]:
    speech = SPEECH_UNINDENTED if unindented else SPEECH
    cast: dict[str, list[str]] = {}
    current: str | None = None
    for line in lines:
        if found := speech.match(line):
            current = found[1].upper()
            if unindented and current.startswith("ACT "):
                current = None
            else:
                cast.setdefault(current, []).append(found[2])
        elif unindented and line.startswith("<"):
            current = None
        elif current is not None and (unindented or line.startswith(INDENT)):
            cast[current].append(line if unindented else line.removeprefix(INDENT))
    return cast


def _raw_texts(files: list[SourceFile]) -> list[SourceFile]:
    def has_plays(file: SourceFile) -> bool:
        with file.open() as stream:
            return stream.read(LARGEST_TEXT).count(HEADING.encode()) > 1

    return [file for file in files if file.name.endswith(".txt") and has_plays(file)]


def _pack_text(file: SourceFile, fraction: float) -> Packed:
    """Split the raw text by speakers; each speaker's first windows are for training, the last for testing."""
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction must be between 0 and 1, not {fraction!r}; 0.9 gives the paper's 660 clients")
    with file.open() as stream:
        text = stream.read().decode("latin-1")
    if not text:
        raise DataError(f"{file.where} is empty; get it again")
    texts: list[Array] = []
    train, test, start = Runs(), Runs(), 0
    for name, said in speakers(text, file.where).items():
        samples = len(said) - WINDOW
        kept = max(1, int(fraction * samples))
        skipped = kept + WINDOW - 1  # the windows that overlap the cut belong to neither half
        if samples > skipped:
            texts.append(encode(said, f"{file.where}, speaker {name}"))
            train[name], test[name] = [(start, kept)], [(start + skipped, samples - skipped)]
            start += len(said)
    if not train:
        raise DataError(f"{file.where} has no speaker with enough text at the fraction {fraction}")
    return _pack(texts, train, test, file.where, fraction)


def _runs(files: Iterable[SourceFile], texts: list[Array]) -> Runs:
    """Read the users of LEAF's files as runs of windows, and append their texts to `texts`."""
    runs = Runs()
    start = sum(len(text) for text in texts)
    for user in users(files):
        text, counts = _rebuilt(user)
        starts = start + np.cumsum([0, *(counts[:-1] + WINDOW)])
        runs[user.name] = list(zip(starts.tolist(), counts.tolist(), strict=True))
        texts.append(text)
        start += len(text)
    return runs


def _rebuilt(user: LeafUser) -> tuple[Array, Array]:
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


def _pack(texts: list[Array], train: Runs, test: Runs, source: str, fraction: float | None) -> Packed:
    arrays: dict[str, Array] = {"text": np.concatenate(texts), "client_names": np.array(list(train))}
    for half, runs in (("train", train), ("test", test)):
        every = np.array([run for client in runs.values() for run in client], dtype=np.int64)  # (runs, 2)
        sizes = [sum(count for _, count in client) for client in runs.values()]
        arrays[f"{half}_starts"], arrays[f"{half}_counts"] = every[:, 0], every[:, 1]
        arrays[f"{half}_offsets"] = np.cumsum([0, *sizes], dtype=np.int64)
    return Packed(arrays, {"task": "shakespeare", "source": source, "synthetic": False, "fraction": fraction})
