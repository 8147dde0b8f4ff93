"""Compare algorithms over seeds: Student's t, rounds to match FedAvg with an interval, and a sentence of conclusion.

Two runs with the same seed start from the same model and see the same cohorts and orders of samples, so paired
differences vary less than accuracies. scipy.special is enough for this; scipy.stats takes three times as long to
import.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgbo.core import ConfigError, stream
from fedgbo.reports.load import Floats, Group
from fedgbo.reports.palette import shown_names
from fedgbo.runs.record import ACCURACY, written

FEWEST_SEEDS = 3  # for an interval of a mean; with two it is often wider than the scale
FEWEST_RESAMPLED = 6  # seeds for the bootstrap; with fewer it returns little but the smallest and the largest seed
RESAMPLES = 10_000
ROUNDING = 1e-9  # far below one test sample's share: equal accuracies are equal, however their means were summed
SAME = "no difference"


@dataclass(frozen=True)
class Paired:
    """A mean difference over the seeds that both have."""

    seeds: int
    difference: float
    interval: float | None  # half of its 95% confidence interval; None with fewer than three seeds
    p: float | None  # two-sided, under the hypothesis of no difference; None with fewer than three seeds


@dataclass(frozen=True)
class Effort:
    """The cost of reaching an accuracy, all clients together."""

    round: int
    upload_bytes: float
    flops: float | None  # None where a seed's could not be counted
    simulated_seconds: float | None = None  # None where a seed had no virtual clock


@dataclass(frozen=True)
class Ratio:
    """FedAvg's rounds to its best accuracy, divided by the rounds of another algorithm to that accuracy."""

    value: float
    low: float | None = None  # the 95% bootstrap interval over seeds; 0: not reached. None with fewer than six seeds
    high: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 1, no difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Summary:
    """The results of one algorithm."""

    label: str
    seeds: int
    accuracy: float  # the highest mean over seeds
    interval: float | None  # half of its 95% confidence interval; None with fewer than three seeds
    best: Effort  # to reach it
    match: Effort | None  # to match the baseline's best; None if never
    versus: Paired | None  # its best accuracy minus the baseline's, seed by seed; None without common seeds
    algorithm: str
    fewer: Ratio | None  # the baseline's rounds divided by its own; None if never, or before the first round
    metric: str = ACCURACY


@dataclass(frozen=True)
class Finding:
    """FedGBO compared with FedAvg by the rounds to FedAvg's best accuracy."""

    baseline: Summary
    ours: Summary
    name: str  # of FedGBO in a sentence

    @property
    def seeds(self) -> str:
        """The number of seeds that both have, in words."""
        return number_word(min(self.ours.seeds, self.baseline.seeds))

    @property
    def headline(self) -> str:
        """The finding in a few words, for a picture."""
        fewer = self.ours.fewer
        if fewer is None:
            return f"{self.name} {self._without_ratio} ({self._mean})"
        if fewer.low is not None and not fewer.clear:
            return f"{self.name} and FedAvg: no clear difference in rounds ({self.seeds})"
        return f"{self.name} reached FedAvg's best {self.baseline.metric} in {times(fewer.value)} ({self.seeds})"

    @property
    def sentence(self) -> str:
        """The finding with its numbers and its interval."""
        fewer, metric, goal = self.ours.fewer, self.baseline.metric, f"({self.goal})"
        if fewer is None or self.ours.match is None:
            return f"{self.name} {self._without_ratio} {goal}, {self._mean}."
        needed, baseline = self.ours.match.round, self.baseline.best.round
        rounds = f"{needed:,}" if needed == baseline else f"{needed:,} instead of {baseline:,}"
        said = f"{self.name} reached FedAvg's best {metric} {goal} in {times(fewer.value)} ({rounds})"
        if fewer.low is None or fewer.high is None:
            few = "is" if self.seeds == "one seed" else "are"
            return f"{said}; {self.seeds} {few} too few for an interval of the ratio."
        interval = f"95% interval {ends(fewer.low, fewer.high)}, {self.seeds}"
        chance = not fewer.clear and needed != baseline
        return f"{said}, but this may be chance: {interval}." if chance else f"{said}, {interval}."

    @property
    def _mean(self) -> str:
        return self.seeds if self.seeds == "one seed" else f"mean of {self.seeds}"

    @property
    def _without_ratio(self) -> str:
        never = self.ours.match is None
        best = f"FedAvg's best {self.baseline.metric}"
        return f"did not reach {best}" if never else f"had {best} before the first round"

    @property
    def goal(self) -> str:
        """FedAvg's best accuracy."""
        return written(self.baseline.accuracy, self.baseline.metric)


def confidence(values: Floats) -> Floats:
    """Return half of the 95% Student's t interval of the mean over the first axis; NaN with fewer than three values."""
    n = len(values)
    if n < FEWEST_SEEDS:
        return np.full(values.shape[1:], np.nan)
    from scipy.special import stdtrit  # not at the start of every command: it takes a while

    half: Floats = stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def paired(ours: Floats, theirs: Floats) -> Paired:
    """Compare two vectors with one value per seed, by the paired t test.

    >>> both = paired(np.array([3.0, 5.0, 7.0]), np.array([2.0, 3.0, 4.0]))
    >>> both.difference, f"{both.interval:.4f}", f"{both.p:.4f}"
    (2.0, '2.4841', '0.0742')
    """
    if ours.shape != theirs.shape or ours.ndim != 1 or not len(ours):
        raise ConfigError("a paired comparison needs two lists with one value for each seed, of the same seeds")
    n, differences = len(ours), ours - theirs
    mean = float(differences.mean())
    if n < FEWEST_SEEDS:
        return Paired(n, mean, None, None)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if error == 0:  # all seeds have the same difference
        return Paired(n, mean, 0.0, 1.0 if mean == 0 else 0.0)
    from scipy.special import stdtr

    return Paired(n, mean, float(confidence(differences)), 2 * float(stdtr(n - 1, -abs(mean) / error)))


def baseline_of(groups: Sequence[Group]) -> Group | None:
    """Return FedAvg's group; of several with different settings, the one with the best accuracy."""
    plain = [group for group in groups if group.runs[0].config.algorithm["name"] == "fedavg"]
    return max(plain, key=lambda group: float(group.accuracy.mean(axis=0).max()), default=None)


def fewer_rounds(group: Group, baseline: Group) -> Ratio | None:
    """Return the ratio of rounds to the baseline's best accuracy; None if the group never has it, or from the start.

    The interval is the bootstrap's: seeds are drawn with replacement, the same ones for both, and everything, the
    baseline's best accuracy included, is computed anew from the mean curves of the draw.
    """
    value = float(_ratios(group, baseline, group.accuracy.mean(axis=0)[None], baseline.accuracy.mean(axis=0)[None])[0])
    if not value or np.isinf(value):
        return None
    places = [{run.config.seed: i for i, run in enumerate(g.runs)} for g in (group, baseline)]
    seeds = sorted(places[0].keys() & places[1].keys())
    if len(seeds) < FEWEST_RESAMPLED:
        return Ratio(value)
    n = len(seeds)
    weights = stream(0, "bootstrap").multinomial(n, [1 / n] * n, size=RESAMPLES) / n  # (resamples, seeds)
    ours, theirs = (
        weights @ g.accuracy[[place[seed] for seed in seeds]]
        for g, place in zip((group, baseline), places, strict=True)
    )
    low, high = np.quantile(_ratios(group, baseline, ours, theirs), [0.025, 0.975], method="inverted_cdf")
    return Ratio(value, float(low), float(high))


def _ratios(group: Group, baseline: Group, ours: Floats, theirs: Floats) -> Floats:
    """Return ratios of rounds for several pairs of curves, (resamples, R) each; 0 where a goal is not reached."""
    best = theirs.argmax(axis=1)
    reached = ours >= theirs.max(axis=1, keepdims=True) - ROUNDING
    rounds = np.where(reached.any(axis=1), group.rounds[reached.argmax(axis=1)], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0: from the start
        ratios: Floats = np.nan_to_num(baseline.rounds[best] / rounds, nan=np.inf, posinf=np.inf)
    return ratios


def summarise(groups: Sequence[Group]) -> list[Summary]:
    """Summarise each group; `match`, `versus` and `fewer` compare with the baseline's best, where there is one."""
    baseline = baseline_of(groups)
    goal = np.inf if baseline is None else baseline.accuracy.mean(axis=0).max() - ROUNDING
    summaries = []
    for group in groups:
        mean, best = group.accuracy.mean(axis=0), _best(group)
        half, reached = float(confidence(group.accuracy)[best]), np.flatnonzero(mean >= goal)
        rival = None if baseline is None or baseline is group else baseline
        row = Summary(
            label=group.label,
            seeds=len(group.runs),
            accuracy=float(mean[best]),
            interval=None if np.isnan(half) else half,
            best=_effort(group, best),
            match=_effort(group, int(reached[0])) if reached.size else None,
            versus=None if rival is None else versus(group, rival),
            algorithm=str(group.runs[0].config.algorithm["name"]),
            fewer=None if rival is None else fewer_rounds(group, rival),
            metric=group.metric,
        )
        summaries.append(row)
    return summaries


def baseline_row(summaries: Iterable[Summary]) -> Summary | None:
    """Return FedAvg's row; of several with different settings, the one with the best accuracy."""
    plain = [row for row in summaries if row.algorithm == "fedavg"]
    return max(plain, key=lambda row: row.accuracy, default=None)


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Compare each FedGBO, the most accurate first, with FedAvg; of several FedAvgs, with the most accurate."""
    if (baseline := baseline_row(summaries)) is None:
        return []
    shown = shown_names([row.label for row in summaries], [row.algorithm for row in summaries])
    made = [Finding(baseline, row, name) for row, name in zip(summaries, shown, strict=True)]
    return sorted((one for one in made if one.ours.algorithm == "fedgbo"), key=lambda one: -one.ours.accuracy)


def finding(summaries: Sequence[Summary]) -> Finding | None:
    """Compare the most accurate FedGBO with FedAvg; None where one of them is missing."""
    return next(iter(findings(summaries)), None)


def conclusion(summaries: Sequence[Summary]) -> list[str]:
    """Compare FedGBO with FedAvg, in one sentence for each FedGBO."""
    return [found.sentence for found in findings(summaries)]


def times(ratio: float) -> str:
    """Say how many fewer rounds were needed.

    >>> times(1.58), times(0.5), times(1.0), times(1.02)
    ('1.6x fewer rounds', '2.0x as many rounds', 'the same number of rounds', 'about the same number of rounds')
    """
    if (text := _signed(ratio)) == SAME:
        return f"{'' if ratio == 1 else 'about '}the same number of rounds"
    return f"{text} rounds"


def ends(low: float, high: float) -> str:
    """Write the interval of a ratio, in the direction of `times`; 0 is a target that was not reached.

    >>> ends(1.2, 2.2), ends(0.5, 0.8), ends(0.8, 1.5)
    ('1.2x to 2.2x', '1.2x to 2.0x', '1.2x as many to 1.5x fewer')
    >>> ends(0.0, 1.0), ends(0.0, 0.5)
    ('not reached to no difference', '2.0x to not reached')
    """
    if low > 1:
        return f"{low:.1f}x to {high:.1f}x"
    if high < 1:
        return f"{1 / high:.1f}x to " + (f"{1 / low:.1f}x" if low else "not reached")
    return f"{_signed(low) if low else 'not reached'} to {_signed(high)}"


def _signed(ratio: float) -> str:
    if f"{max(ratio, 1 / ratio):.1f}" == "1.0":
        return SAME
    return f"{ratio:.1f}x fewer" if ratio > 1 else f"{1 / ratio:.1f}x as many"


def number_word(seeds: int) -> str:
    """Write a number of seeds.

    >>> number_word(1), number_word(10), number_word(20)
    ('one seed', 'ten seeds', '20 seeds')
    """
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return f"{words[seeds] if seeds < len(words) else seeds} seed{'' if seeds == 1 else 's'}"


def _best(group: Group) -> int:  # the index of an evaluation
    return int(group.accuracy.mean(axis=0).argmax())


def versus(group: Group, baseline: Group) -> Paired | None:
    """Return a group's best accuracy minus the baseline's, paired by seed; None if they have no seed in common."""
    ours, theirs = (
        dict(zip((run.config.seed for run in g.runs), g.accuracy[:, _best(g)], strict=True)) for g in (group, baseline)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    return paired(np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])) if seeds else None


def _effort(group: Group, at: int) -> Effort:
    """Return the mean cost over seeds until the `at`-th evaluation."""
    t = int(group.rounds[at])
    records = [record for run in group.runs for record in run.records if record.round == t]
    upload = float(np.mean([record.upload_bytes for record in records]))
    return Effort(t, upload, _mean([r.flops for r in records]), _mean([r.simulated_seconds for r in records]))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
