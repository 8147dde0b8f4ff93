"""From a TOML file to runs: products, what is left out, overrides, and what can be wrong with a file."""

import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.experiment import Changes, make_experiment, only, read_experiment


@pytest.fixture
def write(tmp_path):
    def write(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return file

    return write


def runs(experiment):
    return [(c.task["name"], c.label, c.local_steps, c.rounds, c.seed) for c in experiment.configs]


def test_a_product_without_what_does_not_exist(write):
    made = read_experiment(
        write("""
tasks = "digits"
algorithms = ["fedprox", "fedgbo"]
optimisers = ["sgdm", "adam"]
local_steps = [5, 10]
seeds = 2
rounds = 7
""")
    )
    labels = ["fedprox", "fedgbo-sgdm", "fedgbo-adam"]
    assert runs(made) == [("digits", label, k, 7, seed) for k in (5, 10) for label in labels for seed in (0, 1)]
    assert made.name == "mine"
    assert {config.eval_every for config in made.configs} == {1}
    assert any("preset digits" in note for note in made.notes)


def test_further_grids_take_over_what_they_leave_open(write):
    made = read_experiment(
        write("""
seeds = [3]
rounds = 4
algorithms = "fedavg"
[[run]]
algorithms = "fedgbo:sgdm"
beta = [0.0, 0.5]
[[run]]
algorithms = ["fedavg", "mfl:adam"]
rounds = 4
""")
    )
    assert runs(made) == [
        ("digits", label, 10, 4, 3) for label in ("fedavg", "fedgbo-sgdm", "fedgbo-sgdm", "mfl-adam")
    ], "each run once, in the order of the file"
    assert [c.algorithm["optimiser"]["beta"] for c in made.configs[1:3]] == [0.0, 0.5]


def test_a_file_of_run_tables_has_no_grid_of_its_own(write):
    made = read_experiment(write('seeds = 2\n[[run]]\nalgorithms = "fedavg"\n'))
    assert [label for _, label, *_ in runs(made)] == ["fedavg", "fedavg"]


def test_exclusions_and_overrides(write):
    made = read_experiment(
        write("""
tasks = ["digits", "sent140-synthetic"]
algorithms = ["fedavg", "fedmax", "fedgbo"]
optimisers = ["sgdm", "adam"]
seeds = 1
[[exclude]]
tasks = "sent140"
algorithms = "FedMAX"
[[exclude]]
tasks = "sent140"
optimisers = ["adam"]
[[override]]
algorithms = "fedgbo"
optimisers = "sgdm"
tasks = "digits"
lr = 0.25
rounds = 3
""")
    )
    assert [(task, label) for task, label, *_ in runs(made)] == [
        ("digits", "fedavg"),
        ("digits", "fedmax"),
        ("digits", "fedgbo-sgdm"),
        ("digits", "fedgbo-adam"),
        ("sent140-synthetic", "fedavg"),
        ("sent140-synthetic", "fedgbo-sgdm"),
    ]
    changed = made.configs[2]
    assert (changed.algorithm["optimiser"]["lr"], changed.rounds) == (0.25, 3)
    assert {config.rounds for config in made.configs} == {3, 100}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('algoritms = "fedavg"', r"unknown setting 'algoritms'; did you mean 'algorithms'\?"),
        ('task = "digits"', r"unknown setting 'task'; did you mean 'tasks'\?"),
        ('algorithms = "fedvag"', r"unknown algorithm 'fedvag'; did you mean 'fedavg'\?"),
        ('[[run]]\nalgorithm = "fedavg"', r"\[\[run\]\]: unknown setting 'algorithm'; did you mean 'algorithms'\?"),
        ("[[exclude]]\nlr = 1.0", r"\[\[exclude\]\]: unknown setting 'lr'"),
        ('algorithms = "fedavg"\n[[exclude]]\ntasks = "cifar100"', r"\[\[exclude\]\] number 1 matches no run"),
        (
            'algorithms = "fedavg"\n[[override]]\ntasks = "femnist"\nlr = 1.0',
            r"\[\[override\]\] number 1 matches no run",
        ),
        ('algorithms = "fedavg"\n[[exclude]]\nalgorithms = "fedavg"', "no run is left"),
        ("algorithms = []", "algorithms is an empty list"),
        ("seeds = 0", "seeds must be a whole number of at least 1"),
        ("seeds = [-1]", "seed must be a whole number of at least 0, not -1"),
        ("rounds = [5, 0]", "rounds must be a whole number of at least 1, not 0"),
        ('rounds = "many"', "rounds must be a whole number, not 'many'"),
        ("allow_divergence = 1", "allow_divergence must be true or false, not 1"),
        ("run = 3", "run must be a list, not 3"),
        ('name = "../elsewhere"', "must be a plain file name"),
        ('algorithms = "fedavg"\nbeta = 0.9', "fedavg with sgd takes no beta"),
        ("tasks = ", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(write, text, message):
    with pytest.raises(ConfigError, match=message) as raised:
        read_experiment(write(text))
    assert "mine.toml" in str(raised.value)


def test_settings_of_the_command_line_are_the_strongest():
    content = {"algorithms": ["fedavg", "fedgbo"], "rounds": 5, "seeds": 1}
    made = make_experiment(content, "e", Changes(overrides=("rounds=3", "task.validation=true", "lr=0.5")))
    assert {(c.rounds, c.task["validation"], c.algorithm["optimiser"]["lr"]) for c in made.configs} == {(3, True, 0.5)}
    assert made.file_name == "e-rounds3-task.validationtrue-lr0.5"
    assert made.heading == "e; with rounds=3, task.validation=true, lr=0.5"


def test_a_part_of_an_experiment():
    content = {"tasks": ["digits", "sent140-synthetic"], "algorithms": ["fedavg", "fedgbo"], "seeds": 1}
    made = make_experiment({**content, "optimisers": ["sgdm", "adam"]}, "e", Changes())
    part = only(made, task=["sent140"], optimiser=["adam"])
    assert [(task, label) for task, label, *_ in runs(part)] == [
        ("sent140-synthetic", "fedavg"),
        ("sent140-synthetic", "fedgbo-adam"),
    ]
    assert part.file_name == "e-sent140-adam"
    with pytest.raises(ConfigError, match=r"e has no task 'cifar100' \(it has: digits, sent140, sent140-synthetic\)"):
        only(made, task=["cifar100"])
