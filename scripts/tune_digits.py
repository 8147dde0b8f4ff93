"""The search behind the digits presets: the same effort for every algorithm and optimiser.

Each (algorithm, optimiser) pair gets 16 settings, the points of a Sobol sequence in the box of its hyperparameters
(logarithmic for rates), each trained for 100 rounds with K = 10 on seeds 100 and 101. The score is the mean accuracy
over the second half of the rounds, on held-out training data: the test set and the demo's seeds are never looked at.

    python scripts/tune_digits.py --jobs 2

writes docs/results/digits-search.csv (every trial; what is in it is not tried again) and
src/fedgbo/experiments/presets/digits.csv (the winners).
"""

import argparse
import csv
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.stats import qmc

import fedgbo
from fedgbo.experiments.presets import algorithm_table
from fedgbo.runs.describe import build
from fedgbo.tasks.digits import digits

ROOT = Path(__file__).parents[1]
TRIALS_FILE = ROOT / "docs/results/digits-search.csv"
PRESETS_FILE = ROOT / "src/fedgbo/experiments/presets/digits.csv"
ROUNDS, LOCAL_STEPS, EVAL_EVERY, TRIALS, SEEDS = 100, 10, 5, 16, (100, 101)
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


def _scaled(bounds: tuple[float, float], u: float) -> float:
    low, high = bounds
    if bounds is BETA:
        return float(f"{1 - np.exp(np.log(1 - low) + u * (np.log(1 - high) - np.log(1 - low))):.3g}")
    return float(f"{np.exp(np.log(low) + u * (np.log(high) - np.log(low))):.2g}")


def score(job: tuple[tuple[str, str], dict[str, float], int]) -> float:
    """Train once; a run that diverges scores 0."""
    (algorithm, optimiser), chosen, seed = job
    torch.backends.mkldnn.set_flags(_enabled=False)  # its set-up costs more than convolutions this small
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
    todo = [(pair, chosen) for pair in BOXES for chosen in settings(pair) if (*pair, _text(chosen)) not in tried]
    jobs = [(pair, chosen, seed) for pair, chosen in todo for seed in SEEDS]
    scores: list[float] = []
    with get_context("spawn").Pool(workers) as pool, TRIALS_FILE.open("a", newline="") as file:
        for value in pool.imap(score, jobs):
            scores.append(value)
            if len(scores) % len(SEEDS) == 0:
                pair, chosen = todo[len(scores) // len(SEEDS) - 1]
                mean = round(float(np.mean(scores[-len(SEEDS) :])), 4)
                tried[(*pair, _text(chosen))] = mean
                csv.writer(file, lineterminator="\n").writerow([*pair, _text(chosen), mean])
                file.flush()
    with PRESETS_FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["Dataset", "Algorithm", "Optimiser", "K", "Settings"])
        for pair in BOXES:
            best = max(settings(pair), key=lambda chosen: tried[(*pair, _text(chosen))])
            writer.writerow(("digits", *pair, LOCAL_STEPS, _text(best)))


def _read_trials() -> dict[tuple[str, str, str], float]:
    if not TRIALS_FILE.exists():
        TRIALS_FILE.write_text("Algorithm,Optimiser,Settings,Score\n")
    with TRIALS_FILE.open(newline="") as file:
        rows = csv.DictReader(file)
        return {(row["Algorithm"], row["Optimiser"], row["Settings"]): float(row["Score"]) for row in rows}


def _text(chosen: dict[str, float]) -> str:
    return ", ".join(f"{key}={number:g}" for key, number in chosen.items())


if __name__ == "__main__":
    main()
