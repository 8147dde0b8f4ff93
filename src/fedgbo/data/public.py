"""What the readers of public files share: which format is read, and which clients are kept."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgbo.core import ConfigError, DataError, unknown, whole


@dataclass(frozen=True)
class ClientRules:
    """Which users of public files become clients.

    `by_user` is LEAF's split `-t user`: train and test have different users. Otherwise each user has samples in both;
    `drop_incomplete` drops those who have not.
    """

    min_samples: int | None = None  # of a user, in train and test together; None: as the format has it
    drop_incomplete: bool = False
    by_user: bool = False

    def __post_init__(self) -> None:
        if self.min_samples is not None:
            whole("min_samples", self.min_samples)


EVERY_CLIENT = ClientRules()


@dataclass(frozen=True)
class Kept:
    """The users whose samples are for training, those whose samples are for testing, and what was left out."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    notes: tuple[str, ...] = ()


def pick_format(
    where: Path, files: Iterable[str], formats: Mapping[str, str], present: Collection[str], given: str | None
) -> str:
    """Return the format to read: the given one, or the only one that is present among the files.

    `formats` has the files of each format in words.
    """
    if given is not None and given not in formats:
        raise ConfigError(unknown("format", given, formats))
    wanted = list(formats) if given is None else [given]
    found = [name for name in wanted if name in present]
    if len(found) > 1:
        raise DataError(f"{where} has files of several formats: {', '.join(found)}; choose one with --format")
    if not found:
        needed = "; ".join(f"{formats[name]} ({name})" for name in wanted)
        held = ", ".join(sorted(files)[:5]) or "no files"
        raise DataError(f"{where} has no files of {given or 'a known format'}: it has {held}, and needs: {needed}")
    return found[0]


def choose_clients(train: Mapping[str, int], test: Mapping[str, int], rules: ClientRules, where: object) -> Kept:
    """Apply the rules to the users' numbers of samples in train and test; `where` names the files in errors."""
    ours, theirs = {name for name, n in train.items() if n}, {name for name, n in test.items() if n}
    everyone = dict.fromkeys([*train, *test])
    complete = ours ^ theirs if rules.by_user else ours & theirs
    incomplete = [name for name in everyone if name not in complete]
    if rules.by_user and ours & theirs:
        both = f"user {min(ours & theirs)!r} has train and test samples ({len(ours & theirs)} such users)"
        raise DataError(f"{where}: {both}; these files are not split by user: leave out -t user")
    if incomplete and not rules.drop_incomplete:
        raise DataError(f"{where}: {_incomplete(incomplete, ours, theirs, rules.by_user)}")
    total = {name: train.get(name, 0) + test.get(name, 0) for name in everyone}
    least = rules.min_samples or 0
    kept = {name for name in complete if total[name] >= least}
    names = [tuple(name for name in half if name in kept and half[name]) for half in (train, test)]
    if not rules.by_user:
        names[1] = names[0]  # in the same order
    if not names[0] or not names[1]:
        condition = f" with at least {least} samples" if least else ""
        raise DataError(f"{where}: no user{condition} is left for {'testing' if names[0] else 'training'}")
    notes = [
        _left_out(incomplete, total, "without train or test samples"),
        _left_out(complete - kept, total, f"with fewer than {least} samples"),
        f"train and test have different users: {len(names[0]):,} and {len(names[1]):,}" if rules.by_user else "",
    ]
    return Kept(names[0], names[1], tuple(note for note in notes if note))


def _incomplete(names: list[str], ours: set[str], theirs: set[str], by_user: bool) -> str:
    first = min(names)
    has = "train" if first in ours else "test" if first in theirs else ""
    lacks = "test" if has == "train" else "train"
    found = f"user {first!r} has {f'{has} samples but no {lacks} samples' if has else 'no samples'}"
    hint = "train and test files must be of the same draw; --drop-incomplete leaves such users out"
    if ours and theirs and not ours & theirs and not by_user:
        hint = "if these files were split by user, add -t user"
    return f"{found} ({len(names)} such users); {hint}"


def _left_out(names: Iterable[str], total: Mapping[str, int], what: str) -> str:
    sizes = [total[name] for name in names]
    return f"left out: {len(sizes):,} users {what} ({sum(sizes):,} samples)" if sizes else ""


def one_class(arrays: Mapping[str, Any]) -> list[str]:
    """Warn of labels that are all the same."""
    labels = {half: arrays[f"{half}_labels"] for half in ("train", "test") if f"{half}_labels" in arrays}
    return [
        f"warning: all {len(values):,} {half} samples have the label {values[0]}; there are no classes to distinguish"
        for half, values in labels.items()
        if (values == values[0]).all()
    ]
