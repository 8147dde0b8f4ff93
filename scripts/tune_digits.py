"""The search behind the digits presets: the same effort for every algorithm and optimiser.

Each (algorithm, optimiser) pair gets 16 settings, the points of a Sobol sequence in the box of its hyperparameters
(logarithmic for rates), each trained for 100 rounds with K = 10 on seeds 100 and 101; then the best four are trained on
four seeds more, and the best mean over all six wins. The pairs with SGD and SGDm, which the demo compares, get a third
stage: eight settings more in a box around the winner, a quarter as wide on each axis, on four seeds. A run's
score is its mean accuracy over the second half of the rounds, on held-out training data: the test set and the demo's
seeds are never looked at.

    python scripts/tune_digits.py --jobs 2

writes docs/results/digits-search.csv (every trial; what is in it is not tried again) and
src/fedgbo/experiments/presets/digits.csv (the winners).
"""

import argparse
import csv
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

import fedgbo
from fedgbo.experiments.presets import algorithm_table
from fedgbo.runs.describe import build
from fedgbo.tasks.digits import digits

ROOT = Path(__file__).parents[1]
TRIALS_FILE = ROOT / "docs/results/digits-search.csv"
PRESETS_FILE = ROOT / "src/fedgbo/experiments/presets/digits.csv"
ROUNDS, LOCAL_STEPS, EVAL_EVERY = 100, 10, 5
TRIALS, SEEDS, FINALISTS, MORE_SEEDS = 16, (100, 101), 4, (102, 103, 104, 105)
NEAR, WIDTH = 8, 0.25  # settings of the third stage, and its box's share of each axis
Tried = dict[tuple[str, str, str, tuple[int, ...]], float]
RATE, SERVER_RATE = (0.03, 3.0), (0.1, 10.0)
RMSPROP_RATE = (0.0001, 0.3)
ADAM_RATE = (0.003, 3.0)  # larger: within 100 rounds v hardly leaves its initial 1 at beta2 = 0.99
BETA = (0.5, 0.97)  # drawn so that 1 - beta is log-uniform
WITH_OPTIMISER = ("fedgbo", "mfl", "mimelite", "mimexlite")
BOXES: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("fedavg", "sgd"): {"lr": RATE},
    ("fedprox", "sgd"): {"lr": RATE, "mu": (0.001, 1.0)},
    ("fedmax", "sgd"): {"lr": RATE, "beta": (0.001, 1.0)},
    **{(name, "sgdm"): {"lr": RATE, "beta": BETA} for name in WITH_OPTIMISER},
    ("adaptivefedopt", "sgdm"): {"lr": RATE, "server_lr": SERVER_RATE, "beta": BETA},
    **{(name, "rmsprop"): {"lr": RMSPROP_RATE, "beta": BETA} for name in WITH_OPTIMISER},
    ("adaptivefedopt", "rmsprop"): {"lr": RATE, "server_lr": RMSPROP_RATE, "beta": BETA},
    **{(name, "adam"): {"lr": ADAM_RATE, "beta1": BETA} for name in WITH_OPTIMISER},
    ("adaptivefedopt", "adam"): {"lr": RATE, "server_lr": ADAM_RATE, "beta1": BETA},
}


def settings(pair: tuple[str, str]) -> list[dict[str, float]]:
    """Return the 16 settings that a pair tries."""
    box = BOXES[pair]
    points = qmc.Sobol(len(box), rng=0).random(TRIALS)
    return [{key: _scaled(box[key], u) for key, u in zip(box, point, strict=True)} for point in points]


def around(pair: tuple[str, str], winner: dict[str, float]) -> list[dict[str, float]]:
    """Return the settings that the third stage tries."""
    box = BOXES[pair]
    centre = np.array([_place(box[key], value) for key, value in winner.items()])
    points = np.clip(centre + WIDTH * (qmc.Sobol(len(box), rng=1).random(NEAR) - 0.5), 0, 1)
    return [{key: _scaled(box[key], u) for key, u in zip(box, point, strict=True)} for point in points]


def _place(bounds: tuple[float, float], value: float) -> float:
    """Undo `_scaled`."""
    low, high = (1 - b for b in bounds) if bounds is BETA else bounds
    return float(np.log((1 - value if bounds is BETA else value) / low) / np.log(high / low))


def _scaled(bounds: tuple[float, float], u: float) -> float:
    low, high = bounds
    if bounds is BETA:
        return float(f"{1 - np.exp(np.log(1 - low) + u * (np.log(1 - high) - np.log(1 - low))):.3g}")
    return float(f"{np.exp(np.log(low) + u * (np.log(high) - np.log(low))):.2g}")


def score(job: tuple[tuple[str, str], dict[str, float], int]) -> float:
    """Train once; a run that diverges scores 0."""
    (algorithm, optimiser), chosen, seed = job
    try:
        result = fedgbo.run(
            digits(validation=True),
            build("algorithm", algorithm_table(algorithm, optimiser, chosen)),
            rounds=ROUNDS,
            local_steps=LOCAL_STEPS,
            seed=seed,
            eval_every=EVAL_EVERY,
        )
    except fedgbo.DivergenceError:
        return 0.0
    return float(np.mean([record.accuracy for record in result.history if record.round > ROUNDS // 2]))


def main() -> None:
    """Search what is not in the file of trials yet, and write the winners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    workers = parser.parse_args().jobs
    tried = _read_trials()
    with get_context("spawn").Pool(workers) as pool:
        _run(pool, tried, SEEDS, {pair: settings(pair) for pair in BOXES})
        ranked = {
            pair: sorted(settings(pair), key=lambda chosen: -tried[(*pair, _text(chosen), SEEDS)]) for pair in BOXES
        }
        _run(pool, tried, MORE_SEEDS, {pair: order[:FINALISTS] for pair, order in ranked.items()})
        winners = {pair: max(order[:FINALISTS], key=partial(_final, tried, pair)) for pair, order in ranked.items()}
        compared = [pair for pair in BOXES if pair[1] in ("sgd", "sgdm")]
        nearby = {pair: around(pair, winners[pair]) for pair in compared}
        _run(pool, tried, MORE_SEEDS, nearby)
    for pair in compared:
        winners[pair] = max([winners[pair], *nearby[pair]], key=lambda c: tried[(*pair, _text(c), MORE_SEEDS)])
    with PRESETS_FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Dataset", "Algorithm", "Optimiser", "K", "Settings"])
        writer.writerows(("digits", *pair, LOCAL_STEPS, _text(winners[pair])) for pair in BOXES)


def _run(
    pool: Any, tried: Tried, seeds: tuple[int, ...], wanted: dict[tuple[str, str], list[dict[str, float]]]
) -> None:
    """Score what is not in the file yet, and append it."""
    todo = [(pair, chosen) for pair, several in wanted.items() for chosen in several]
    todo = [(pair, chosen) for pair, chosen in todo if (*pair, _text(chosen), seeds) not in tried]
    values = pool.imap(score, [(pair, chosen, seed) for pair, chosen in todo for seed in seeds])
    with TRIALS_FILE.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for pair, chosen in todo:
            mean = round(float(np.mean([next(values) for _ in seeds])), 4)
            tried[(*pair, _text(chosen), seeds)] = mean
            writer.writerow([*pair, _text(chosen), " ".join(map(str, seeds)), mean])
            file.flush()


def _final(tried: Tried, pair: tuple[str, str], chosen: dict[str, float]) -> float:
    """The mean over all seeds of a finalist."""
    total = sum(len(seeds) * tried[(*pair, _text(chosen), seeds)] for seeds in (SEEDS, MORE_SEEDS))
    return total / (len(SEEDS) + len(MORE_SEEDS))


def _read_trials() -> Tried:
    if not TRIALS_FILE.exists():
        TRIALS_FILE.write_text("Algorithm,Optimiser,Settings,Seeds,Score\n")
    with TRIALS_FILE.open(newline="") as file:
        return {
            (row["Algorithm"], row["Optimiser"], row["Settings"], tuple(map(int, row["Seeds"].split()))): float(
                row["Score"]
            )
            for row in csv.DictReader(file)
        }


def _text(chosen: dict[str, float]) -> str:
    return ", ".join(f"{key}={number:g}" for key, number in chosen.items())


if __name__ == "__main__":
    main()
