import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.presets import Preset, preset, preset_file, presets
from fedgbo.experiments.request import read_request

ROWS = [
    Preset("cifar100-synthetic", "fedgbo", "sgdm", 10, {"lr": 0.1, "beta": 0.123456789}),
    Preset("cifar100", "fedgbo", "sgdm", 10, {"lr": 1e-05, "beta": 0.9999}),
    Preset("digits", "my/File.py:Mine", "their/File.py:Other", 10, {"pull": 3.0}),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(preset_file(ROWS))
    return path


def test_a_file_comes_back_as_it_was_written(file):
    assert presets(str(file)) == ROWS


def test_numbers_are_short_but_exact(file):
    assert file.read_text().splitlines()[2].endswith('"lr=1e-05, beta=0.9999"')
    third = preset_file([Preset("digits", "fedavg", "sgd", 10, {"lr": 0.1, "mu": 1 / 3})])
    assert "lr=0.1, mu=0.3333333333333333" in third


def test_the_tasks_own_row_comes_before_that_of_its_original(file):
    assert preset(str(file), "cifar100-synthetic", "fedgbo") == ROWS[0]
    assert preset(str(file), "cifar100", "fedgbo", "sgdm", 10) == ROWS[1]


def test_names_of_the_users_own_keep_their_case(file):
    assert preset(str(file), "digits", "my/File.py:Mine", "their/File.py:Other") == ROWS[2]


def test_a_run_takes_its_settings_from_a_file(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(preset_file([Preset("digits", "fedgbo", "sgdm", 10, {"lr": 0.25, "beta": 0.75})]))
    config, note = read_request(None, {"preset": str(file), "algorithm": "FedGBO"}, ()).resolve()
    assert config.algorithm["optimiser"] == {"name": "sgdm", "lr": 0.25, "beta": 0.75}
    assert note == f"preset {file}: lr=0.25, beta=0.75"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lr,beta\n1,2\n", "is not a preset file; its first line must be Dataset,Algorithm,Optimiser,K,Settings"),
        ("Dataset,Algorithm,Optimiser,K,Settings\ndigits,fedgbo,sgdm,ten,lr=1\n", "row 1 must be like digits,fedgbo"),
        ("Dataset,Algorithm,Optimiser,K,Settings\ndigits,fedgbo,sgdm,10,lr=big\n", "row 1 must be like digits,fedgbo"),
        ("Dataset,Algorithm,Optimiser,K,Settings\ndigits\n", "row 1 must be like digits,fedgbo"),
    ],
)
def test_a_file_that_is_none(tmp_path, text, complaint):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        presets(str(file))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"the preset file .* cannot be read"):
        presets(str(tmp_path / "nowhere.csv"))
    with pytest.raises(ConfigError, match=r"unknown preset 'nowhere'.*your own: path/to/file.csv"):
        presets("nowhere")
