"""Averages of models with several decays, scored on held-out data of the clients. An average does not change the
training, so one run scores all of them.

    python scripts/average_decays.py fedgbo:sgdm lr=0.1 beta=0.8 --out docs/results/study/average-decays.csv

--rounds N stops earlier. The file gets a row for every decay after 200, 300, ... rounds; decay 0 is the latest model.
"""

import argparse
import csv
from pathlib import Path

from torch import Tensor

import fedgbo
from fedgbo.experiments.request import requested_config
from fedgbo.runs.evaluate import evaluate
from fedgbo.runs.round import Progress

DECAYS = (0.0, 0.9, 0.95, 0.98, 0.99, 0.995)
EVERY, FIRST = 100, 200


def main() -> None:
    """Train once, and append the scores to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("settings", nargs="*", help="key=value")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--task", default="cifar100")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    flags = {"task": given.task, "algorithm": given.algorithm, "preset": "none", "rounds": given.rounds, "seed": 100}
    config = requested_config(None, flags, given.settings)[0].model_copy(update={"held_out": 0.2})
    task = config.build_task()
    averages: dict[float, Tensor] = {}

    def score(progress: Progress) -> None:
        t, x = progress.ledger.round, progress.state.params
        for decay in DECAYS:
            d = min(decay, t / (t + 9))  # as in Averaged, but from the first round's model on
            averages[decay] = d * averages.get(decay, x) + (1 - d) * x
        if t >= FIRST and t % EVERY == 0:
            about = given.algorithm, " ".join(given.settings), t
            rows = [(*about, decay, evaluate(average, task).accuracy) for decay, average in averages.items()]
            with given.out.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)

    fedgbo.run(task, config.built_algorithm, rounds=given.rounds, seed=100, eval_every=given.rounds, callbacks=[score])


if __name__ == "__main__":
    main()
