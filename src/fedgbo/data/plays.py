"""From Project Gutenberg's Shakespeare (etext 100 of 1994) to what each speaker says, by LEAF's procedure.

The procedure has its quirks, such as a first play that is skipped and a play without indentation that is read by other
rules. They are kept: the published clients only come out with them.
"""

import re
from collections.abc import Iterator

from fedgbo.core.errors import DataError

HEADING = "by William Shakespeare"
LINES = 124_196  # without the first line; what comes after them is not Shakespeare
UNINDENTED = "THE COMEDY OF ERRORS"
SPEECH = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")
SPEECH_UNINDENTED = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")
INDENT = "    "
Speakers = dict[str, list[str]]  # snippets of speech by speaker


def speakers(text: str, where: str) -> dict[str, str]:
    """Return each client's whole text, by the client's name ("<play>_<speaker>"), in the order of the plays."""
    texts: dict[str, str] = {}
    for title, cast in _plays(_lines(text, where)):
        if len(cast) <= 1:
            continue
        for speaker, snippets in cast.items():
            if len(snippets) > 2:
                name = re.sub(r"\W+", "_", f"{title}_{speaker}".replace(" ", "_"))
                texts[name] = re.sub(r"  +", " ", "".join(snippet + " " for snippet in snippets))
    return texts


def _lines(text: str, where: str) -> list[str]:
    """Cut out the plays: from 5 lines above the second heading on."""
    lines = text.replace("\r\n", "\n").split("\n")[1:]
    headings = [k for k, line in enumerate(lines) if HEADING in line]
    if len(headings) < 2:
        raise DataError(
            f"{where} has {len(headings)} lines with {HEADING!r} where many are expected; "
            "give Project Gutenberg's etext 100 in its version of 1994"
        )
    if len(lines) < LINES:
        raise DataError(
            f"{where} has {len(lines)} lines after the first, and {LINES} are needed: it was cut short, or is not "
            "Project Gutenberg's etext 100 in its version of 1994"
        )
    return lines[max(0, headings[1] - 5) : LINES]


def _plays(lines: list[str]) -> Iterator[tuple[str, Speakers]]:
    """Give each play's title and its speakers."""
    starts = [k for k, line in enumerate(lines) if HEADING in line]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        title = _title(lines, start)
        yield title, _speeches(lines[start + 1 : end], unindented=title == UNINDENTED)


def _title(lines: list[str], heading: int) -> str:
    """Return the nearest line 2 to 7 above the heading that is not blank."""
    above = (lines[k].strip() for k in range(heading - 2, max(-1, heading - 8), -1))
    return next((line for line in above if line), "")


def _speeches(lines: list[str], *, unindented: bool) -> Speakers:
    speech = SPEECH_UNINDENTED if unindented else SPEECH
    cast: Speakers = {}
    current: str | None = None
    for line in lines:
        found = speech.match(line)
        if found:
            current = found[1].upper()
            if unindented and current.startswith("ACT "):
                current = None
                continue
            cast.setdefault(current, []).append(found[2])
        elif current is None:
            continue
        elif unindented:
            if line.startswith("<"):
                current = None
            else:
                cast[current].append(line)
        elif line.startswith(INDENT):
            cast[current].append(line.removeprefix(INDENT))
    return cast
