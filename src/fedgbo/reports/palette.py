"""Colours and names of algorithms: the same in every picture and on every page.

FedGBO has one strong colour and a thick line. FedAvg has the colour of the text: nearly black on white, nearly white on
dark paper. All others are thin and muted, with a contrast of at least 3:1 against white and against dark paper (a test
computes it), so only FedAvg's colour depends on the paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INK, PAPER, QUIET, RULE = "#111111", "#ffffff", "#666666", "#dddddd"
DARK = {INK: "#f2f2f2", PAPER: "#14171a", QUIET: "#a3a8ae", RULE: "#363b41"}  # the same on dark paper
STRONG = "#d6400b"

ALGORITHMS: dict[str, tuple[str, str]] = {  # by their names in the catalogue: as a paper writes them, and the colour
    "fedgbo": ("FedGBO", STRONG),
    "fedavg": ("FedAvg", INK),
    "adaptivefedopt": ("AdaptiveFedOpt", "#4f6fa3"),
    "fedmax": ("FedMAX", "#577a44"),
    "fedprox": ("FedProx", "#a88b4b"),
    "mfl": ("MFL", "#43a196"),
    "mimelite": ("Mimelite", "#7f5f96"),
    "mimexlite": ("MimeXlite", "#bd788d"),
    "apfl": ("APFL", "#8f5a83"),
    "averaged": ("Averaged", "#a0645a"),
    "ditto": ("Ditto", "#6967a1"),
    "fedadagrad": ("FedAdagrad", "#779c63"),
    "fedadam": ("FedAdam", "#5498be"),
    "fedavgm": ("FedAvgM", "#409ead"),
    "fedbn": ("FedBN", "#b27aa5"),
    "fedbuff": ("FedBuff", "#929451"),
    "fedcm": ("FedCM", "#99576c"),
    "feddyn": ("FedDyn", "#31779b"),
    "fedlin": ("FedLin", "#6f6f6f"),
    "fednova": ("FedNova", "#727330"),
    "fedper": ("FedPer", "#167f75"),
    "fedrep": ("FedRep", "#387f5c"),
    "fedsam": ("FedSAM", "#6f90c6"),
    "fedyogi": ("FedYogi", "#5aa07c"),
    "ghbm": ("GHBM", "#876a29"),
    "mime": ("Mime", "#a080b8"),
    "mofedsam": ("MoFedSAM", "#8987c4"),
    "qfedavg": ("QFedAvg", "#8f8f8f"),
    "scaffold": ("SCAFFOLD", "#107c8b"),
}
OPTIMISERS = {  # as their classes are written
    "adagrad": "AdaGrad", "adam": "Adam", "adamw": "AdamW", "amsgrad": "AMSGrad", "correctedadam": "CorrectedAdam",
    "lion": "Lion", "nesterov": "Nesterov", "rmsprop": "RMSProp", "sgd": "SGD", "sgdm": "SGDm", "signum": "Signum",
    "yogi": "Yogi",
}  # fmt: skip
OTHERS = ("#2a6fdb", "#b5309b", "#5a8f00", "#8a5be6", "#c2185b", "#9a6100")  # for what is not in the catalogue
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 4], [4, 2, 1, 2])  # for several lines of one algorithm
WIDTHS = {"fedgbo": 3.2, "fedavg": 2.2}
THIN, OWN = 1.4, 2.2  # rivals, and what is not in the catalogue
Point = dict[str, Any]  # has the label under "algorithm"


@dataclass(frozen=True)
class Palette:
    """The colour, dash and width of each line, by its label; `algorithms` has the algorithm of each label."""

    algorithms: Mapping[str, str]
    ink: str = INK  # FedAvg's colour; a page has a CSS variable
    compared: tuple[str, ...] = ()  # the two labels that are compared, if they are known

    def colour(self, label: str) -> str:
        """Return the colour of the label's algorithm."""
        algorithm = self.algorithms[label]
        if algorithm not in ALGORITHMS:
            unknown = dict.fromkeys(name for name in self.algorithms.values() if name not in ALGORITHMS)
            return OTHERS[list(unknown).index(algorithm) % len(OTHERS)]
        colour = ALGORITHMS[algorithm][1]
        return self.ink if colour == INK else colour

    def dash(self, label: str) -> list[int]:
        """Return a dash that differs between the lines of one algorithm; the compared one, else the first, is solid."""
        alike = [other for other, algorithm in self.algorithms.items() if algorithm == self.algorithms[label]]
        alike.sort(key=lambda other: other not in self.compared)
        return DASHES[alike.index(label) % len(DASHES)]

    def width(self, label: str) -> float:
        """Return the width of a line; a thick line tells FedGBO apart without colour."""
        algorithm = self.algorithms[label]
        return WIDTHS.get(algorithm, THIN if algorithm in ALGORITHMS else OWN)

    @property
    def bands(self) -> tuple[str, ...]:
        """The labels with bands: those compared, else the first FedAvg and FedGBO, or all if there are only two."""
        if self.compared or len(self.algorithms) <= 2:
            return self.compared or tuple(self.algorithms)
        first = {algorithm: label for label, algorithm in reversed(list(self.algorithms.items()))}
        return tuple(first[name] for name in ("fedavg", "fedgbo") if name in first)

    def back_to_front(self, rows: Iterable[Point]) -> list[Point]:
        """Return points in the order of drawing: FedAvg and FedGBO lie over the others."""
        order = {"fedavg": 1, "fedgbo": 2}
        return sorted(rows, key=lambda row: order.get(self.algorithms[row["algorithm"]], 0))


def shown_names(labels: Sequence[str], algorithms: Sequence[str]) -> list[str]:
    """Return the names in a picture: an algorithm's own if it has one line there, else with its optimiser.

    Users' labels stay.

    >>> shown_names(["fedavg", "fedgbo-sgdm", "mfl-sgdm", "mfl (2)"], ["fedavg", "fedgbo", "mfl", "mfl"])
    ['FedAvg', 'FedGBO', 'MFL-SGDm', 'mfl (2)']
    """
    written = OPTIMISERS | {name: shown for name, (shown, _) in ALGORITHMS.items()}

    def shown(label: str, name: str) -> str:
        parts = label.split("-")
        if parts[0] != name or name not in ALGORITHMS:
            return label
        if list(algorithms).count(name) == 1:
            return written[name]
        return "-".join(written[part] for part in parts) if all(part in written for part in parts) else label

    return [shown(label, name) for label, name in zip(labels, algorithms, strict=True)]
