import pytest

import fedgbo
from fedgbo.algorithms import PAPER
from fedgbo.experiments.compare import claim, jobs_of, plan
from fedgbo.experiments.presets import algorithm_table, preset, presets
from fedgbo.experiments.request import point_at, read_request
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = 5\nlerning_rate = 1\n", r"run.toml, line 2: unknown setting 'lerning_rate'"),
        ("rounds = 5\nrondus = 1\n", r"line 2: unknown setting 'rondus'; did you mean 'rounds'"),
        ("seed = 0\nrounds = 'ten'\n", r"line 2: rounds: input should be a valid integer, not 'ten'"),
        ("rounds = 5\nlr = \n", r"not valid TOML: Invalid value .at line 2"),
        ("rounds = 0\n", "line 1: rounds: input should be greater than or equal to 1, not 0"),
        ("batch_size = 'half'\n", "line 1: batch_size: "),
    ],
)
def test_a_typo_is_shown_with_its_line(toml, text, message):
    with pytest.raises(fedgbo.ConfigError, match=message):
        read_request(toml(text), {}, [])


def test_a_typo_deep_inside_is_shown_with_its_line_too(toml):
    file = toml('[algorithm]\nname = "fedgbo"\n[algorithm.optimiser]\nname = "sgdm"\nlr = 0.1\nbetta = 0.9\n')
    config, _ = read_request(file, {}, []).resolve()
    with pytest.raises(fedgbo.ConfigError) as caught:
        _ = config.built_algorithm
    assert "run.toml, line 6: optimiser sgdm: unknown setting 'betta'; did you mean 'beta'" in str(
        point_at(caught.value, file)
    )


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
        ({"lr": 0.1}, ["algorithm.optimiser.beta=1"], "algorithm is a full table, so lr must be written inside"),
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
    assert everything == set(PAPER)
    adam = plan(["all"], 1, {"task": "digits", "optimiser": "adam"})[0]
    assert {config.label for config in adam} >= {"fedavg", "fedprox", "fedmax", "fedgbo-adam", "adaptivefedopt-adam"}
