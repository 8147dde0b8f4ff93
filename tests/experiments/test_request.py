import pytest
import torch

import fedgbo
from fedgbo.algorithms import ALGORITHMS, PAPER, PERSONALISED
from fedgbo.experiments.compare import claim, everyone, jobs_of, plan
from fedgbo.experiments.presets import algorithm_table, preset, presets
from fedgbo.experiments.request import read_request, requested_config, same_as_fedavg
from fedgbo.runs.describe import build


@pytest.fixture
def toml(tmp_path):
    def write(text):
        file = tmp_path / "run.toml"
        file.write_text(text)
        return file

    return write


def test_file_then_flags_then_overrides(toml):
    file = toml('algorithm = "fedavg"\nlr = 0.1\nrounds = 7\nseed = 1\n')
    request = read_request(file, {"rounds": 8, "seed": None}, ["lr=0.3", "local_steps=2"])
    config, note = request.resolve()
    assert (config.rounds, config.seed, config.local_steps) == (8, 1, 2)
    assert config.algorithm == {"name": "fedavg", "optimiser": {"name": "sgd", "lr": 0.3}}
    assert note is None


def test_full_tables_and_schedules(toml):
    file = toml("""
[algorithm]
name = "fedgbo"
[algorithm.optimiser]
name = "sgdm"
beta = 0.9
lr = { name = "step", initial = 0.5, every = 10 }
""")
    config, _ = read_request(
        file, {}, ["algorithm.optimiser.beta=0.8", 'objective={name="proximal", mu=0.1}']
    ).resolve()
    algorithm = config.built_algorithm
    assert algorithm.optimiser == fedgbo.SGDm(lr=fedgbo.Step(0.5, every=10), beta=0.8)
    assert algorithm.terms == (fedgbo.Proximal(0.1),)
    assert config.label == "fedgbo-sgdm"


def test_presets_fill_in_what_is_left_open():
    config, note = read_request(None, {"algorithm": "fedgbo", "beta": 0.5}, []).resolve()
    row = preset("digits", "digits", "fedgbo", None, None)
    assert row.optimiser == "sgdm"
    assert config.algorithm["optimiser"] == {"name": "sgdm", "lr": row.settings["lr"], "beta": 0.5}
    assert note == f"preset digits: lr={row.settings['lr']:g}"


@pytest.mark.parametrize("row", presets("digits"), ids=lambda row: f"{row.algorithm}-{row.optimiser}")
def test_every_digits_preset_builds(row):
    assert isinstance(build("algorithm", row.algorithm_table()), fedgbo.FederatedAlgorithm)


def test_the_papers_settings_by_name_and_by_default():
    flags = {"task": "cifar100-synthetic", "algorithm": "fedgbo", "optimiser": "sgdm", "local_steps": 10}
    for preset_name in ("paper", None):
        config, note = read_request(None, {**flags, "preset": preset_name}, []).resolve()
        assert config.algorithm["optimiser"] == {"name": "sgdm", "lr": 0.1, "beta": 0.9}
        assert note == "preset paper: lr=0.1, beta=0.9"
    config, note = read_request(None, {**flags, "local_steps": 45}, []).resolve()
    assert config.algorithm["optimiser"] == {"name": "sgdm", "lr": 0.01, "beta": 0.99}
    assert note.endswith("(tuned for K=50)")


SAME = {  # algorithms that are another one under another name have its tuned settings
    "fedcm": ("fedgbo", "sgdm", lambda own: {"lr": own["lr"], "alpha": pytest.approx(1 - own["beta"])}),
    "fednova": ("fedavg", "sgd", dict),
    "fedavgm": ("adaptivefedopt", "sgdm", dict),
    "fedadam": ("adaptivefedopt", "adam", dict),
}


def test_every_algorithm_of_the_paper_has_a_digits_preset():
    rows = {(row.algorithm, row.optimiser): row.settings for row in presets("digits")}
    assert {algorithm for algorithm, _ in rows} == {*PAPER, "scaffold", *SAME}
    for name, (other, optimiser, settings) in SAME.items():
        (own,) = [value for (algorithm, _), value in rows.items() if algorithm == name]
        assert own == settings(rows[other, optimiser])


def test_where_each_setting_belongs():
    table = algorithm_table("adaptivefedopt", "adam", {"lr": 0.1, "server_lr": 0.01, "beta1": 0.9})
    assert table == {
        "name": "adaptivefedopt",
        "client": {"name": "sgd", "lr": 0.1},
        "server": {"name": "adam", "lr": 0.01, "beta1": 0.9},
    }
    assert algorithm_table("fedmax", "sgd", {"lr": 0.1, "beta": 1.0}) == {
        "name": "fedmax",
        "optimiser": {"name": "sgd", "lr": 0.1},
        "beta": 1.0,
    }


def test_average_makes_any_algorithm_the_base():
    plain, smooth = (requested_config(None, {}, ["lr=0.3", "beta=0.5", *more])[0] for more in ([], ["average=0.9"]))
    assert smooth.algorithm == {"name": "averaged", "decay": 0.9, "base": plain.algorithm}
    assert smooth.label == "averaged-fedgbo-sgdm"
    assert smooth.built_algorithm == fedgbo.Averaged(plain.built_algorithm, decay=0.9)
    with pytest.raises(fedgbo.ConfigError, match="fedgbo: optimiser sgdm needs beta; for example"):
        requested_config(None, {"preset": "none"}, ["algorithm=fedgbo:sgdm", "lr=0.3", "average=0.9"])
    with pytest.raises(fedgbo.ConfigError, match="averaged needs base"):
        requested_config(None, {}, ["algorithm=averaged"])


@pytest.mark.parametrize(
    ("given", "label", "settings"),
    [
        ({"task": "cifar100"}, "averaged-fedgbo-sgdm", "lr=0.1, beta=0.8, average=0.995"),
        ({"task": "cifar100", "algorithm": "fedavg"}, "averaged-fedavg", "lr=0.1, average=0.995"),
        ({"task": "digits"}, "fedgbo-sgdm", "lr=1, beta=0.8"),
    ],
)
def test_the_recommended_preset(given, label, settings):
    config, note = requested_config(None, {**given, "preset": "recommended"})
    assert config.label == label
    assert note == f"preset recommended: {settings}"


def test_the_recommended_preset_names_its_tasks():
    message = (
        "recommended has no settings for femnist, fedgbo, K=10; it has: nothing for this task, only for cifar100, di"
    )
    with pytest.raises(fedgbo.ConfigError, match=message):
        requested_config(None, {"task": "femnist", "preset": "recommended"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = 5\nlerning_rate = 1\n", r"run.toml, line 2: unknown setting 'lerning_rate'"),
        ("rounds = 5\nrondus = 1\n", r"line 2: unknown setting 'rondus'; did you mean 'rounds'"),
        ("seed = 0\nrounds = 'ten'\n", r"line 2: rounds must be a whole number, not 'ten'"),
        ("rounds = 5\nlr = \n", r"not valid TOML: Invalid value .at line 2"),
        ("rounds = 0\n", "line 1: rounds must be a whole number of at least 1, not 0"),
        ("batch_size = 'half'\n", "line 1: batch_size must be a whole number or 'full', not 'half'"),
    ],
)
def test_a_typo_is_shown_with_its_line(toml, text, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        requested_config(toml(text))


def test_a_typo_deep_inside_is_shown_with_its_line_too(toml):
    file = toml('[algorithm]\nname = "fedgbo"\n[algorithm.optimiser]\nname = "sgdm"\nlr = 0.1\nbetta = 0.9\n')
    with pytest.raises(fedgbo.ConfigError, match=r"run.toml, line 6: .*unknown setting 'betta'; did you mean 'beta'"):
        requested_config(file)


@pytest.mark.parametrize(
    ("flags", "overrides", "message"),
    [
        ({"algorithm": "fedgob"}, [], "unknown algorithm 'fedgob'; did you mean 'fedgbo'"),
        ({"task": "digit"}, [], "unknown task 'digit'; did you mean 'digits'"),
        ({"optimiser": "adma"}, [], "unknown optimiser 'adma'; did you mean 'adam'"),
        ({"algorithm": "fedavg", "optimiser": "adam"}, [], "fedavg trains with plain SGD, not adam"),
        ({"algorithm": "fedavg", "mu": 0.1}, [], "fedavg with sgd takes no mu; it takes lr"),
        ({"preset": "nope"}, [], "unknown preset 'nope'"),
        ({"preset": "digits", "local_steps": 50}, [], "preset digits has no settings for digits, fedgbo, K=50; it has"),
        ({}, ["rounds"], "'rounds' must be key=value"),
        ({"lr": 0.1}, ["algorithm.optimiser.name=sgdm"], "algorithm is a full table, so lr must be written inside"),
        ({"rondus": 1}, ["algorithm.optimiser.name=sgdm"], "unknown setting 'rondus'; did you mean 'rounds'"),
        ({"weight_decay": 1}, [], "fedgbo with sgdm takes no weight_decay; it takes lr, beta"),
        ({}, ["rounds.x=1"], "unknown|rounds"),
    ],
)
def test_wrong_requests(flags, overrides, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        read_request(None, flags, overrides).resolve()


def test_a_comparison_is_planned_and_claims_its_folder(tmp_path):
    configs, notes = plan(["fedavg", "fedgbo:sgdm"], 2, {"task": "digits", "rounds": 3})
    assert [(config.label, config.seed) for config in configs] == [
        ("fedavg", 0), ("fedavg", 1), ("fedgbo-sgdm", 0), ("fedgbo-sgdm", 1)
    ]  # fmt: skip
    assert len(notes) == 2
    assert claim(tmp_path / "c", configs) is False
    assert claim(tmp_path / "c", configs) is True
    with pytest.raises(fedgbo.RunFolderError, match="holds another comparison"):
        claim(tmp_path / "c", configs[:2])
    with pytest.raises(fedgbo.RunFolderError, match="is not empty"):
        claim(tmp_path, configs)
    (tmp_path / "file").touch()
    with pytest.raises(fedgbo.RunFolderError, match="cannot write into"):
        claim(tmp_path / "file" / "c", configs)
    with pytest.raises(fedgbo.ConfigError, match="fedavg is named twice"):
        jobs_of(plan(["fedavg", "fedavg"], 1, {"task": "digits"})[0], tmp_path)
    everything = {config.algorithm["name"] for config in plan(["all"], 1, {"task": "digits"})[0]}
    assert everything == ALGORITHMS.keys() - PERSONALISED - {"averaged", "fedbuff"}, (
        "one needs a base, the other a clock"
    )
    assert {config.algorithm["name"] for config in plan(["all"], 1, {"task": "digits-clients"})[0]} == (
        ALGORITHMS.keys() - {"averaged", "fedbuff", "fedbn"}
    ), "the CNN of digits has no batch normalisation"
    assert {config.algorithm["name"] for config in plan(["paper"], 1, {"task": "digits"})[0]} == set(PAPER)
    adam = plan(["paper"], 1, {"task": "digits", "optimiser": "adam"})[0]
    assert {config.label for config in adam} >= {"fedavg", "fedprox", "fedmax", "fedgbo-adam", "adaptivefedopt-adam"}


def test_all_are_the_algorithms_with_presets_tuned_with_the_same_effort(tmp_path, monkeypatch):
    """Personalised ones among them where clients have test sets."""
    field = tmp_path / "field.csv"
    field.write_text(
        "Dataset,Algorithm,Optimiser,K,Settings\n"
        'digits,fedavg,sgd,10,lr=0.4\ndigits,ditto,sgd,10,"lr=0.4, lam=0.1"\ndigits,fedcm,sgd,10,"lr=0.4, alpha=0.1"\n'
    )
    with monkeypatch.context() as patch:
        patch.setattr("fedgbo.experiments.compare.FIELD", str(field))
        assert everyone("digits") == ("fedavg", "fedcm")
        assert everyone("digits-clients") == ("fedavg", "ditto", "fedcm")
        assert everyone("cifar100-synthetic") == PAPER
    monkeypatch.setattr("fedgbo.experiments.compare.everyone", lambda task: PAPER)
    _, notes = plan(["all"], 1, {"task": "digits"})
    assert notes[0] == "all: no algorithms were tuned with the same effort for digits, so these are the paper's"
    with pytest.raises(fedgbo.ConfigError, match="mimexlite: optimiser sgdm needs lr, beta"):
        plan(["all"], 1, {"task": "cifar100-synthetic"})


OWN = """
from dataclasses import dataclass
import fedgbo


@dataclass(frozen=True)
class AdamW(fedgbo.Optimiser):
    lr: float
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self):
        if self.lr > 1:
            raise ValueError("lr is too large")

    def update(self, params, stats, grad):
        return params * (1 - self.weight_decay) - self.lr * grad


@dataclass(frozen=True)
class Share(fedgbo.FedAvg):
    share: float = 0.5


class Plain(fedgbo.FederatedAlgorithm):
    def client_update(self, down, client):
        return fedgbo.State(down.params * 0)
"""


@pytest.fixture
def own(tmp_path):
    """A file with classes of a user's."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    "setting", ["weight_decay=.1", "optimiser.weight_decay=.1", "algorithm.optimiser.weight_decay=.1"]
)
def test_hyperparameters_of_ones_own_optimiser(own, setting):
    config, _ = requested_config(None, {"optimiser": f"{own}:AdamW", "lr": 0.2}, [setting, "nesterov=True"])
    assert config.algorithm["optimiser"] == {"name": f"{own}:AdamW", "lr": 0.2, "weight_decay": 0.1, "nesterov": True}
    assert config.built_algorithm.optimiser.weight_decay == 0.1


@pytest.mark.parametrize("setting", ["share=.25", "algorithm.share=.25"])
def test_hyperparameters_of_ones_own_algorithm(own, setting):
    config, _ = requested_config(None, {"algorithm": f"{own}:Share", "lr": 0.2}, [setting])
    assert config.algorithm == {"name": f"{own}:Share", "optimiser": {"name": "sgd", "lr": 0.2}, "share": 0.25}


def test_settings_of_each_of_two_optimisers():
    flags = {"algorithm": "adaptivefedopt", "task": "quadratic", "optimiser": "adam", "lr": 0.1}
    expected = {"client": {"name": "sgd", "lr": 0.1}, "server": {"name": "adam", "lr": 0.01, "beta1": 0.9}}
    for place in ("server", "optimiser"):
        config, _ = requested_config(None, flags, [f"{place}.lr=.01", f"{place}.beta1=.9"])
        assert config.algorithm == {"name": "adaptivefedopt", **expected}
    config, _ = requested_config(None, {**flags, "optimiser": None, "server": expected["server"]})
    assert config.algorithm == {"name": "adaptivefedopt", **expected}


def test_what_is_given_is_stronger_than_the_preset():
    config, note = requested_config(None, {}, ["optimiser.beta=0.5"])
    assert config.algorithm["optimiser"]["beta"] == 0.5
    assert "beta" not in note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["weight_decay=abc"], "weight_decay must be a number or a table, not 'abc'"),
        (["nesterov=yes"], "nesterov must be true or false, not 'yes'"),
        (["lr=2"], r"own\.py:AdamW: lr is too large"),
        (["algorithm=mine.py"], "algorithm mine.py is a file; add :Class, the name of the class in it"),
        (["wieght_decay=1"], "unknown setting 'wieght_decay'; did you mean 'weight_decay'"),
    ],
)
def test_wrong_hyperparameters_of_ones_own(own, settings, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        requested_config(None, {"optimiser": f"{own}:AdamW", "lr": 0.1}, settings)


def test_an_algorithm_with_its_optimiser_in_one_name(toml):
    for config, _ in (
        requested_config(None, {"algorithm": "fedgbo:adam", "preset": "none", "lr": 0.1}, ["beta1=0.9", "beta2=0.99"]),
        requested_config(None, {"algorithm": "fedgbo:adam", "task": "quadratic"}, ["optimiser.lr=0.1", "beta1=0.9"]),
        requested_config(toml("algorithm = 'FedGBO:Adam'\npreset = 'none'\nlr = 0.1\nbeta1 = 0.9\nbeta2 = 0.99\n")),
    ):
        assert config.label == "fedgbo-adam"
    with pytest.raises(fedgbo.ConfigError, match="fedgbo:adam names its optimiser; leave out the optimiser sgdm"):
        requested_config(None, {"algorithm": "fedgbo:adam", "optimiser": "sgdm"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"task": "cifar10"}, "fedgbo: optimiser sgdm needs lr, beta; for example: lr=0.1 beta=0.9"),
        (
            {"task": "cifar10", "algorithm": "adaptivefedopt", "lr": 0.1},
            "adaptivefedopt: optimiser sgdm needs server_lr, beta; for example: server_lr=0.1 beta=0.9",
        ),
        ({"task": "cifar10", "algorithm": "fedprox", "lr": 0.1}, "fedprox needs mu; for example: mu=0.1"),
        ({"task": "mine.py"}, "task mine.py is a file; add :function, the name of the function in it"),
        ({"rounds": -1}, "rounds must be a whole number of at least 1, not -1"),
        ({"weights": "all"}, "weights must be 'clients' or 'samples', not 'all'"),
    ],
)
def test_how_missing_and_wrong_settings_are_said(flags, message):
    with pytest.raises(fedgbo.ConfigError, match=f"^{message}$"):
        requested_config(None, flags)


def test_an_optimiser_that_nothing_takes(own):
    with pytest.raises(fedgbo.ConfigError, match=r"Plain takes no optimiser, so adam must be left out"):
        requested_config(None, {"algorithm": f"{own}:Plain", "optimiser": "adam"})


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ({"algorithm": "fedgob"}, []),
        ({}, ["algorithm=fedgob"]),
        ({}, ["rounds=ten"]),
        ({}, ["beta=2"]),
        ({}, ["bta=1"]),
    ],
)
def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(toml, flags, settings):
    file = toml('algorithm = "fedgbo"\nrounds = 3\nbeta = 0.5\n')
    with pytest.raises(fedgbo.ConfigError) as caught:
        requested_config(file, flags, settings)
    assert "run.toml" not in str(caught.value)


def test_a_mistake_in_the_file_is_blamed_on_it_whatever_is_on_the_command_line(toml):
    with pytest.raises(fedgbo.ConfigError, match=r"run\.toml, line 1: unknown algorithm 'fedgob'"):
        requested_config(toml('algorithm = "fedgob"\n'), {"rounds": 3}, ["lr=.1"])


def test_sgd_makes_fedavg_of_it_and_that_is_said(task):
    sgd = fedgbo.SGD(lr=0.1)
    expected = fedgbo.run(task, fedgbo.FedAvg(sgd), rounds=3).params
    for name in ("fedgbo", "mfl", "mimelite", "mimexlite"):
        torch.testing.assert_close(fedgbo.run(task, ALGORITHMS[name](sgd), rounds=3).params, expected)
        config, _ = requested_config(None, {"algorithm": name, "optimiser": "sgd", "lr": 0.1, "preset": "none"})
        assert same_as_fedavg(config).startswith(f"{name} with sgd trains the same model as fedavg")
    assert same_as_fedavg(requested_config(None, {"algorithm": "fedavg"})[0]) is None
    assert same_as_fedavg(requested_config(None, {})[0]) is None


def test_a_comparison_of_algorithms_with_settings_of_their_own(own, tmp_path):
    shared = {"task": "digits", "rounds": 3}
    configs, notes = plan(
        ["fedavg lr=.1", "fedavg lr=.2", f"fedgbo:{own}:AdamW", "lr=.1", "weight_decay=.2"], 1, shared
    )
    optimisers = [config.algorithm["optimiser"] for config in configs]
    assert [(optimiser["lr"], optimiser.get("weight_decay")) for optimiser in optimisers] == [
        (0.1, None), (0.2, None), (0.1, 0.2)
    ]  # fmt: skip
    assert [job.out.name for job in jobs_of(configs, tmp_path)] == [
        "fedavg-lr-0-1-seed0", "fedavg-lr-0-2-seed0", "fedgbo-adamw-seed0"
    ]  # fmt: skip
    assert notes == []
    _, notes = plan(["fedavg", "fedgbo"], 1, {**shared, "optimiser": "sgd", "lr": 0.5})
    assert notes == ["fedgbo with sgd trains the same model as fedavg; choose another optimiser, such as fedgbo:sgdm"]
    for entries, count in ((["lr=0.3"], 8), (["all", "lr=0.3"], 22), (["all lr=0.3"], 22)):
        everything, _ = plan(entries, 1, shared)
        clients = [config.algorithm.get("optimiser") or config.algorithm["client"] for config in everything]
        assert [client["lr"] for client in clients] == [0.3] * count


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["fedavg::"], "'fedavg::' must be an algorithm, or algorithm:optimiser"),
        (["fedavg:sgd:adam"], "'fedavg:sgd:adam' must be an algorithm"),
        (["fedavg", "seed=3"], "'seed=3': all algorithms of a comparison have the same seed"),
        (["fedavg", "beta=.9"], "fedavg with sgd takes no beta; it takes lr"),
    ],
)
def test_wrong_entries_of_a_comparison(entries, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        plan(entries, 1, {"task": "digits"})
