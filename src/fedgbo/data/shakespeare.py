"""Reads and opens Shakespeare: next characters by play and speaker, from Gutenberg's text, LEAF's JSON or TFF's files.

Samples are windows one character apart, so the text is stored once and a client is a run of windows in it. The raw
text is split by LEAF's procedure with its quirks, such as a first play that is skipped and a play without indentation
that has its own rules: the published clients only result with them. TFF's files have snippets of text for training and
others for testing; a client's snippets are joined as LEAF joins them.
"""

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgbo.core import ConfigError, DataError, check_seed, stream
from fedgbo.data.archives import SourceFile, only_file, source_files
from fedgbo.data.federated import FederatedData
from fedgbo.data.leaf import LeafUser, is_leaf, leaf_files, users
from fedgbo.data.public import EVERY_CLIENT, ClientRules, choose_clients, pick_format
from fedgbo.data.samples import WINDOW, WindowSamples
from fedgbo.data.store import Array, Packed
from fedgbo.data.tff import is_hdf5, tff_half, tff_rows, tff_strings

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
MOST_UNKNOWN = 0.01  # share of TFF's characters that may be none of the vocabulary
FORMATS = {
    "text": "Project Gutenberg's text (.txt)",
    "leaf": "LEAF's JSON, train and test files",
    "tff-hdf5": "TFF's shakespeare_train.h5 and shakespeare_test.h5",
    "tff-sqlite": "TFF's shakespeare.sqlite",
}
_NUMBERS = np.full(256, UNKNOWN, dtype=np.uint8)
_NUMBERS[np.frombuffer(VOCABULARY.encode("ascii"), dtype=np.uint8)] = np.arange(len(VOCABULARY))

Runs = dict[str, list[tuple[int, int]]]  # by client: (start in the text, number of windows) of each run
Snippets = dict[str, list[bytes]]  # by client


@dataclass
class Texts:
    """The numbers of characters of all texts, one after another."""

    pieces: list[Array] = field(default_factory=list)
    size: int = 0

    def add(self, text: Array) -> int:
        """Append a text and return its start."""
        self.pieces.append(text)
        self.size += len(text)
        return self.size - len(text)


def read_shakespeare(
    source: Path,
    fraction: float | None = None,
    *,
    format: str | None = None,
    rules: ClientRules = EVERY_CLIENT,
    seed: int = 0,
) -> Packed:
    """Read the speakers that the rules keep.

    The raw text is split here: `fraction` of each speaker's windows is for training or, by user, of the speakers, drawn
    by `seed`. The other formats are split already.
    """
    check_seed(seed)
    files = source_files(source)
    found = {"text": _raw_texts(files), "leaf": [file for file in files if is_leaf(file)]}
    found["tff-hdf5"] = [file for file in files if is_hdf5(file)]
    found["tff-sqlite"] = [file for file in files if file.name.endswith(".sqlite")]
    format = pick_format(
        source, (file.name for file in files), FORMATS, [name for name, some in found.items() if some], format
    )
    if format != "text" and fraction is not None:
        raise ConfigError(f"{source}: these files are split already; leave out the fraction, or give the raw text")
    texts = Texts()
    notes: tuple[str, ...] = ()
    if format == "text":
        file, fraction = only_file(source, found["text"], "texts"), FRACTION if fraction is None else fraction
        train, test, notes = _split_text(file, texts, fraction, seed if rules.by_user else None)
    elif format == "leaf":
        train, test = (_runs(half, texts) for half in leaf_files(source))
    else:
        read = _hdf5_snippets if format == "tff-hdf5" else _sqlite_snippets
        train, test, notes = _join_snippets(read(found[format], source), texts, str(source))
    sizes = [{name: sum(count for _, count in runs) for name, runs in half.items()} for half in (train, test)]
    kept = choose_clients(sizes[0], sizes[1], rules, source)
    chosen = ({name: half[name] for name in names} for half, names in ((train, kept.train), (test, kept.test)))
    meta = {"task": "shakespeare", "source": str(source), "synthetic": False, "fraction": fraction, "format": format}
    return Packed(_pack(texts, *chosen), meta, (*notes, *kept.notes))


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
    unknown = (numbers == UNKNOWN) | (
        np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32) > UNKNOWN
    )
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
    """Find the text of the plays; a single file may have any name."""

    def has_plays(file: SourceFile) -> bool:
        with file.open() as stream:
            return stream.read(LARGEST_TEXT).count(HEADING.encode()) > 1

    if len(files) == 1 and not files[0].name.endswith((".json", ".h5", ".hdf5", ".sqlite")):
        return files
    return [file for file in files if file.name.endswith(".txt") and has_plays(file)]


def _split_text(
    file: SourceFile, texts: Texts, fraction: float, seed: int | None
) -> tuple[Runs, Runs, tuple[str, ...]]:
    """Split the raw text by speakers; with a seed, train and test get different speakers.

    Otherwise each speaker's first windows are for training, the last for testing.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"fraction must be between 0 and 1, not {fraction!r}; 0.9 gives the paper's 660 clients")
    with file.open(LARGEST_TEXT) as stream_of_bytes:
        text = stream_of_bytes.read().decode("latin-1")
    if not text:
        raise DataError(f"{file.where} is empty; get it again")
    said = {name: words for name, words in speakers(text, file.where).items() if len(words) > WINDOW}
    order = np.arange(len(said)) if seed is None else stream(seed, "shakespeare split").permutation(len(said))
    for_training = set(order[: max(1, int(fraction * len(said)))].tolist())
    train, test = Runs(), Runs()
    for k, (name, words) in enumerate(said.items()):
        samples = len(words) - WINDOW
        kept = max(1, int(fraction * samples))
        skipped = kept + WINDOW - 1  # the windows that overlap the cut belong to neither half
        if seed is not None:
            start = texts.add(encode(words, f"{file.where}, speaker {name}"))
            (train if k in for_training else test)[name] = [(start, samples)]
        elif samples > skipped:
            start = texts.add(encode(words, f"{file.where}, speaker {name}"))
            train[name], test[name] = [(start, kept)], [(start + skipped, samples - skipped)]
    if not train or not test:
        raise DataError(f"{file.where} has no speaker with enough text at the fraction {fraction}")
    few = len(said) - len(train | test)
    return train, test, (f"left out: {few:,} speakers with too little text for both halves",) if few else ()


def _runs(files: Iterable[SourceFile], texts: Texts) -> Runs:
    """Read the users of LEAF's files as runs of windows, and append their texts to `texts`."""
    runs = Runs()
    for user in users(files):
        if not user.x:
            runs[user.name] = []
            continue
        text, counts = _rebuilt(user)
        starts = texts.add(text) + np.cumsum([0, *(counts[:-1] + WINDOW)])
        runs[user.name] = list(zip(starts.tolist(), counts.tolist(), strict=True))
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


def _hdf5_snippets(files: list[SourceFile], source: Path) -> tuple[Snippets, Snippets]:
    chosen = (tff_half(files, half, "shakespeare", source) for half in ("train", "test"))
    train, test = (tff_strings(file, "snippets", LARGEST_TEXT) for file in chosen)
    return train, test


def _sqlite_snippets(files: list[SourceFile], source: Path) -> tuple[Snippets, Snippets]:
    halves = {"train": Snippets(), "test": Snippets()}
    file = only_file(source, files, "SQLite files")
    for split, client, snippet in tff_rows(file, "snippets"):
        if split not in halves:
            raise DataError(f"{file.where} has the split {split!r}; Shakespeare's are train and test")
        halves[split].setdefault(client, []).append(snippet)
    return halves["train"], halves["test"]


def _join_snippets(halves: tuple[Snippets, Snippets], texts: Texts, where: str) -> tuple[Runs, Runs, tuple[str, ...]]:
    """Join each client's snippets to one text; characters that the vocabulary lacks become blanks."""
    runs: tuple[Runs, Runs] = Runs(), Runs()
    size = unknown = 0
    for half, found in zip(runs, halves, strict=True):
        for name, snippets in found.items():
            joined = re.sub(r"\s+", " ", "".join(snippet.decode("latin-1") + " " for snippet in snippets))
            numbers = _NUMBERS[np.frombuffer(joined.encode("latin-1"), dtype=np.uint8)]
            size, unknown = size + len(numbers), unknown + int((numbers == UNKNOWN).sum())
            start = texts.add(np.where(numbers == UNKNOWN, 0, numbers))  # 0 is the blank
            half[name] = [(start, len(numbers) - WINDOW)] if len(numbers) > WINDOW else []
    if unknown > MOST_UNKNOWN * size:
        raise DataError(f"{where}: {unknown:,} of {size:,} characters are none of the paper's 79; this is another text")
    short = {name for half in runs for name, counts in half.items() if not counts}
    kept = [{name: counts for name, counts in half.items() if name not in short} for half in runs]
    notes = [f"replaced: {unknown:,} of {size:,} characters by blanks"] if unknown else []
    notes += [f"left out: {len(short):,} users with too little text"] if short else []
    return kept[0], kept[1], tuple(notes)


def _pack(texts: Texts, train: Runs, test: Runs) -> dict[str, Array]:
    arrays: dict[str, Array] = {"text": np.concatenate(texts.pieces), "client_names": np.array(list(train))}
    for half, runs in (("train", train), ("test", test)):
        every = np.array([run for client in runs.values() for run in client], dtype=np.int64)  # (runs, 2)
        sizes = [sum(count for _, count in client) for client in runs.values()]
        arrays[f"{half}_starts"], arrays[f"{half}_counts"] = every[:, 0], every[:, 1]
        arrays[f"{half}_offsets"] = np.cumsum([0, *sizes], dtype=np.int64)
    return arrays
