"""Search the digits presets again, as `fedgbo tune` does: every algorithm, every optimiser, the same effort.

Each pair may take 8,000 rounds with SGD and SGDm, which the demo compares, and 4,800 with RMSProp and Adam: what the
shipped presets took; the other optimisers, with FedGBO alone, get 4,800 as well. Personalised algorithms are left out:
the accuracy of the global model does not compare them. Settings are searched by TPE in the paper's ranges, on 6 seeds
of 100 rounds, scored by the mean accuracy over the whole curve on held-out training data: the test set and the demo's
seeds are never looked at.

    python scripts/tune_digits.py --jobs 2

goes on where it was stopped, and writes src/fedgbo/experiments/presets/digits.csv when all searches have ended.

`--field` searches the presets of `fedgbo compare all` instead, field.csv: every algorithm, each with its own optimiser
or SGDm, and each with the same 4,000 rounds of TPE on two seeds of 100 rounds, as many as `compare` runs: a search on
one seed of 50 rounds chose a learning rate with which SCAFFOLD diverged in round 71. FedPer, FedRep, Ditto and APFL are
scored by the clients' own models, on the data that their clients hold out.
"""

import argparse
from pathlib import Path

from fedgbo.core.files import write_atomic
from fedgbo.experiments.presets import preset_file, presets
from fedgbo.experiments.tune.plan import claim_search, plan_of
from fedgbo.experiments.tune.study import local_url, outcome_of, winner
from fedgbo.experiments.tune.worker import search

ROOT = Path(__file__).parents[1]
PRESETS_FOLDER = ROOT / "src/fedgbo/experiments/presets"
SEARCHES = ROOT / "runs/presets"
BUDGETS = {"sgd": 8000, "sgdm": 8000, "rmsprop": 4800, "adam": 4800}
LESS = 4800  # rounds for the other optimisers
PLAIN = (
    "fedavg",
    "fedprox",
    "fedmax",
    "scaffold",
    "fednova",
    "fedcm",
    "feddyn",
    "fedsam",
    "mofedsam",
    "qfedavg",
    "fedlin",
)
FIXED = {"ghbm": ["tau=3"]}  # a whole number, which is not searched
SERVER = {"fedavgm": "sgdm", "fedadam": "adam", "fedyogi": "yogi", "fedadagrad": "adagrad"}
WITH_OPTIMISER = ("fedgbo", "mfl", "mimelite", "mimexlite", "adaptivefedopt", "mime")
OTHERS = ("nesterov", "adagrad", "yogi", "amsgrad", "adamw", "correctedadam", "lion", "signum")
PAIRS = [(name, "sgd") for name in (*PLAIN, *FIXED)]
PAIRS += [(name, o) for o in ("sgdm", "rmsprop", "adam") for name in WITH_OPTIMISER]
PAIRS += [*SERVER.items(), *(("fedgbo", o) for o in OTHERS)]
HEAD = "personal_part=650"  # the last layer of the digits CNN
PERSONAL = {"fedper": [HEAD], "fedrep": [HEAD], "ditto": [], "apfl": []}
FIELD = [(name, "sgd") for name in (*PLAIN, *FIXED, *PERSONAL)] + [*SERVER.items()]
FIELD += [(name, "sgdm") for name in WITH_OPTIMISER]
SMALL = {"budget": 4000, "rounds": 100, "seeds": 2}  # of the field


def main() -> None:
    """Search what has not ended yet, and join the winners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--field", action="store_true")
    given = parser.parse_args()
    rows, name = [], "field" if given.field else "digits"
    for algorithm, optimiser in FIELD if given.field else PAIRS:
        effort = SMALL if given.field else {"budget": BUDGETS.get(optimiser, LESS), "seeds": 6}
        rows += presets(str(tuned(algorithm, optimiser, effort, SEARCHES / name, given.jobs)))
    write_atomic(PRESETS_FOLDER / f"{name}.csv", preset_file(rows).encode())


def tuned(algorithm: str, optimiser: str, effort: dict[str, int], folder: Path, jobs: int) -> Path:
    """Carry out or end the search of one algorithm; return its preset file."""
    out = folder / f"{algorithm}-{optimiser}"
    if not (out / "preset.csv").exists():
        fixed = [*FIXED.get(algorithm, []), *PERSONAL.get(algorithm, [])]
        plan = plan_of("digits", algorithm, optimiser, fixed, effort)
        claim_search(out, plan, out.name)
        study = search(plan, out, local_url(out), out.name, jobs, lambda study: None)
        best = outcome_of(study, plan).best
        write_atomic(out / "preset.csv", winner(plan, best).encode())
        print(f"{out.name}: {best.settings}, {best.score:.4f}", flush=True)
    return out / "preset.csv"


if __name__ == "__main__":
    main()
