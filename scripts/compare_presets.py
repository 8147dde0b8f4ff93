"""Two preset files against each other on seeds that neither was tuned with, on held-out data and on the test set.

    python scripts/compare_presets.py shipped=digits tuned=runs/tuned/preset.csv --out docs/results/digits-tune.csv

prints the mean accuracy over the whole run, over its second half and at its end, and the paired difference with half of
its 95% Student's t interval; the file has a row for each run.
"""

import argparse
import csv
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fedgbo.experiments.presets import preset
from fedgbo.experiments.tune.plan import score
from fedgbo.reports.comparison import confidence
from fedgbo.runs.config import RunConfig, execute

FIRST_SEED = 200
ROUNDS, EVAL_EVERY, HELD_OUT = 100, 5, 0.2
SCORES = ("curve", "second half", "last")


def scores(job: tuple[str, str, str, bool, int]) -> list[float]:
    """Run one seed and return its scores."""
    source, algorithm, optimiser, held_out, seed = job
    row = preset(source, "digits", algorithm, optimiser, 10)
    if row is None:
        raise SystemExit(f"{source} has no row for digits, {algorithm}, {optimiser}")
    config = RunConfig(
        task={"name": "digits"},
        algorithm=row.algorithm_table(),
        rounds=ROUNDS,
        seed=seed,
        eval_every=EVAL_EVERY,
        held_out=HELD_OUT if held_out else None,
    )
    records = execute(config, workers=1).history
    found = score([records]), score([records], warm_up=ROUNDS // 2), score([records], "last")
    return [float(one) for one in found if one is not None]


def main() -> None:
    """Run both presets on the same seeds, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs=2, metavar="LABEL=PRESET", help="a preset's name or file, after a label")
    parser.add_argument("--algorithm", default="fedgbo")
    parser.add_argument("--optimiser", default="sgdm")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    presets = dict(text.partition("=")[::2] for text in given.presets)
    cases = [(label, held, seed) for held in (True, False) for label in presets for seed in range(given.seeds)]
    jobs = [(presets[label], given.algorithm, given.optimiser, held, FIRST_SEED + seed) for label, held, seed in cases]
    with get_context("spawn").Pool(given.jobs) as pool:
        found = pool.map(scores, jobs, chunksize=1)
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "on", "seed", *SCORES])
        for (label, held, seed), values in zip(cases, found, strict=True):
            numbers = [f"{value:.6f}" for value in values]
            writer.writerow([label, "held-out" if held else "test", FIRST_SEED + seed, *numbers])
    _report(list(presets), given.seeds, np.array(found))


def _report(labels: Sequence[str], seeds: int, found: np.ndarray) -> None:
    by_case = found.reshape(2, len(labels), seeds, len(SCORES))
    for on, (first, second) in zip(("held-out", "test"), by_case, strict=True):
        for k, name in enumerate(SCORES):
            gain = second[:, k] - first[:, k]
            print(
                f"{on:8} {name:11}  {labels[0]} {first[:, k].mean():.2%}  {labels[1]} {second[:, k].mean():.2%}  "
                f"difference {gain.mean():+.2%} ± {confidence(gain):.2%}"
            )


if __name__ == "__main__":
    main()
