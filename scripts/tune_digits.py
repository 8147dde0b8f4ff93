"""The search behind the digits presets: the same effort for every algorithm and optimiser.

Each (algorithm, optimiser) pair gets 16 settings, the points of a Sobol sequence in the box of its hyperparameters
(logarithmic for rates), each trained for 100 rounds with K = 10 on seeds 100 and 101. The score is the mean accuracy
over the second half of the rounds, on held-out training data: the test set and the demo's seeds are never looked at.

    python scripts/tune_digits.py --jobs 2

writes docs/results/digits-search.csv (every trial) and src/fedgbo/experiments/presets/digits.csv (the winners).
"""

import argparse
import csv
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy.stats import qmc

import fedgbo
from fedgbo.experiments.presets import algorithm_table
from fedgbo.runs.describe import build
from fedgbo.tasks.digits import digits

ROUNDS, LOCAL_STEPS, EVAL_EVERY, TRIALS, SEEDS = 100, 10, 5, 16, (100, 101)
RATE, ADAPTIVE_RATE, SERVER_RATE = (0.03, 3.0), (0.001, 0.3), (0.1, 10.0)
BETA = (0.5, 0.97)  # drawn so that 1 - beta is log-uniform
BOXES: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("fedavg", "sgd"): {"lr": RATE},
    ("fedprox", "sgd"): {"lr": RATE, "mu": (0.001, 1.0)},
    ("fedmax", "sgd"): {"lr": RATE, "beta": (0.001, 1.0)},
}
for name in ("fedgbo", "mfl", "mimelite", "mimexlite"):
    BOXES[name, "sgdm"] = {"lr": RATE, "beta": BETA}
    BOXES[name, "rmsprop"] = {"lr": ADAPTIVE_RATE, "beta": BETA}
    BOXES[name, "adam"] = {"lr": ADAPTIVE_RATE, "beta1": BETA}
BOXES["adaptivefedopt", "sgdm"] = {"lr": RATE, "server_lr": SERVER_RATE, "beta": BETA}
BOXES["adaptivefedopt", "rmsprop"] = {"lr": RATE, "server_lr": ADAPTIVE_RATE, "beta": BETA}
BOXES["adaptivefedopt", "adam"] = {"lr": RATE, "server_lr": ADAPTIVE_RATE, "beta1": BETA}


def settings(pair: tuple[str, str]) -> list[dict[str, float]]:
    """Return the 16 settings that a pair tries."""
    box = BOXES[pair]
    points = qmc.Sobol(len(box), rng=0).random(TRIALS)
    return [{key: _scaled(key, box[key], u, pair) for key, u in zip(box, point, strict=True)} for point in points]


def _scaled(key: str, bounds: tuple[float, float], u: float, pair: tuple[str, str]) -> float:
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
    """Search, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    jobs = [(pair, chosen, seed) for pair in BOXES for chosen in settings(pair) for seed in SEEDS]
    trials: dict[tuple[str, str], list[tuple[float, str]]] = {pair: [] for pair in BOXES}
    with get_context("spawn").Pool(parser.parse_args().jobs) as pool:
        scores = []
        for i, value in enumerate(pool.imap(score, jobs)):
            scores.append(value)
            if (i + 1) % len(SEEDS) == 0:
                pair, chosen, _ = jobs[i]
                text = ", ".join(f"{key}={number:g}" for key, number in chosen.items())
                trials[pair].append((float(np.mean(scores[-len(SEEDS) :])), text))
                print(*pair, text, f"{trials[pair][-1][0]:.4f}", flush=True)
    root = Path(__file__).parents[1]
    with (root / "docs/results/digits-search.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Algorithm", "Optimiser", "Settings", "Score"])
        writer.writerows((*pair, text, f"{s:.4f}") for pair, tried in trials.items() for s, text in tried)
    with (root / "src/fedgbo/experiments/presets/digits.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Dataset", "Algorithm", "Optimiser", "K", "Settings"])
        writer.writerows(("digits", *pair, LOCAL_STEPS, max(tried)[1]) for pair, tried in trials.items())


if __name__ == "__main__":
    main()
