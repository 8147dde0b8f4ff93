import sys
import tomllib
from dataclasses import asdict

import pytest

from fedgbo.cli.federation import options_of
from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.experiments.request import read_request
from fedgbo.federation.app_folder import OPTIONS, to_toml, write_app
from fedgbo.federation.local import prepare
from fedgbo.flower.options import Options


def request(**settings):
    return read_request(None, settings, []).resolve()[0]


def test_an_app_for_a_task_of_ours(tmp_path):
    config = request(task="digits", algorithm="mimelite", optimiser="adam", rounds=4, eval_every=2)
    settings = write_app(tmp_path / "app", config, {"deadline": 5.0})
    assert {path.name for path in (tmp_path / "app").iterdir()} == {
        "pyproject.toml", "task.py", "client_app.py", "server_app.py", "settings.toml",
    }  # fmt: skip
    about = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert about["tool"]["flwr"]["app"]["config"] == {**OPTIONS, "deadline": 5.0}
    again, _ = read_request(settings, {}, []).resolve()
    assert again == config.complete()
    for name in ("task.py", "client_app.py", "server_app.py"):
        compile((tmp_path / "app" / name).read_text(), name, "exec")


@pytest.mark.parametrize(("nodes", "options", "wait"), [(2, {}, 120.0), (20, {}, 200.0), (20, {"wait": 5.0}, 5.0)])
def test_a_local_federation_of_many_nodes_waits_longer_for_them(tmp_path, nodes, options, wait):
    folder = prepare(tmp_path / "fed", request(task="digits", algorithm="fedavg"), nodes, options)
    about = tomllib.loads((folder.app / "pyproject.toml").read_text())
    assert about["tool"]["flwr"]["app"]["config"]["wait"] == wait


def test_flower_takes_the_app(tmp_path):
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import get_fab_metadata, load_and_validate

    write_app(tmp_path / "my_first app", request(task="digits", algorithm="fedavg"), {})
    _, warnings = load_and_validate(tmp_path / "my_first app" / "pyproject.toml")
    assert warnings == []
    assert get_fab_metadata(build_fab_from_disk(tmp_path / "my_first app")) == ("fedgbo/my-first-app", "1.0.0")


@pytest.mark.parametrize("link", [False, True])
def test_an_app_for_a_users_own_file(tmp_path, monkeypatch, link):
    mine = tmp_path / "mine.py"
    mine.write_text("import fedgbo.tasks\n\ndef small(size: int = 3):\n    return fedgbo.tasks.TASKS['digits']()\n")
    monkeypatch.chdir(tmp_path)
    config = request(task={"name": "mine.py:small", "size": 4}, algorithm="fedavg", lr=0.1)
    settings = write_app(tmp_path / "app", config, {}, link=link)
    task = (tmp_path / "app" / "task.py").read_text()
    told = tomllib.loads(settings.read_text())["task"]
    if link:
        assert f"build_task = load('{mine}:small')" in task
        assert told == {"name": f"{mine}:small", "size": 4}
    else:
        assert task == mine.read_text()
        assert told == {"name": f"{tmp_path / 'app' / 'task.py'}:small", "size": 4}
        assert "from task import small\n\napp = client_app(small)\n" in (tmp_path / "app" / "client_app.py").read_text()


def test_a_folder_that_is_taken(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").touch()
    with pytest.raises(RunFolderError, match="already exists and is not empty"):
        write_app(tmp_path / "app", request(task="digits", algorithm="fedavg"), {})


def test_toml_comes_back_as_it_was():
    table = {"a b": [1, 2.5, float("inf")], "t": {"x": {}, "y": 'say "ö"\n', "z": True, "n": None}, "none": None}
    assert tomllib.loads(to_toml(table)) == {"a b": [1, 2.5, float("inf")], "t": {"x": {}, "y": 'say "ö"\n', "z": True}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deadlin=3", "unknown option 'deadlin'; did you mean 'deadline'"),
        ("deadline", "must be key=value"),
        ("deadline=soon", "deadline must be a number, not 'soon'"),
        ("weighted=1", "weighted must be true or false"),
        ("attempts=true", "attempts must be a whole number"),
        ("over-select=0.5", "over-select must be a whole number"),
        ("resume=true", "unknown option 'resume'"),
    ],
)
def test_options_are_checked(text, message):
    with pytest.raises(ConfigError, match=message):
        options_of([text])


def test_options_have_the_kind_of_their_defaults():
    found = options_of(["quorum=1", "deadline=2.5", "over-select=1"])
    assert found == {"quorum": 1, "deadline": 2.5, "over-select": 1}
    assert isinstance(found["quorum"], int)


def test_the_defaults_are_those_of_the_adapter():
    ours = {name.replace("_", "-"): value for name, value in asdict(Options()).items()}
    assert ours.items() <= OPTIONS.items()
    assert set(OPTIONS) - set(ours) == {"run-folder", "settings", "resume", "clients", "started-by", "started-at"}


def test_files_of_the_same_name_from_two_folders(tmp_path):
    for folder, base in (("a", "FedAvg"), ("b", "SGD")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"import fedgbo\n\nclass My{base}(fedgbo.{base}):\n    pass\n")
    table = {"name": f"{tmp_path}/a/mine.py:MyFedAvg", "optimiser": {"name": f"{tmp_path}/b/mine.py:MySGD", "lr": 0.1}}
    settings = write_app(tmp_path / "app", request(task="digits", algorithm=table), {})
    algorithm = read_request(settings, {}, []).resolve()[0].built_algorithm
    assert (type(algorithm).__name__, type(algorithm.optimiser).__name__) == ("MyFedAvg", "MySGD")


OWN = """
import fedgbo

class MyAlgorithm(fedgbo.FedAvg):
    pass

class MySGD(fedgbo.SGD):
    pass
"""


@pytest.mark.parametrize("link", [False, True])
def test_an_algorithm_of_the_users_own_comes_along(tmp_path, link):
    mine = tmp_path / "my-own.py"
    mine.write_text(OWN)
    table = {"name": f"{mine}:MyAlgorithm", "optimiser": {"name": f"{mine}:MySGD", "lr": 0.1}}
    settings = write_app(tmp_path / "app", request(task="digits", algorithm=table), {}, link=link)
    again, _ = read_request(settings, {}, []).resolve()
    assert type(again.built_algorithm).__name__ == "MyAlgorithm"
    place = mine if link else tmp_path / "app" / "own_my_own.py"
    assert again.algorithm["optimiser"]["name"] == f"{place}:MySGD"
    client = (tmp_path / "app" / "client_app.py").read_text()
    assert client.endswith("app = client_app(build_task, own=[MyAlgorithm, MySGD])\n")
    assert (tmp_path / "app" / "server_app.py").read_text().endswith("app = server_app(build_task)\n")
    if not link:
        assert place.read_text() == OWN
    names = {}
    sys.path.insert(0, str(tmp_path / "app"))
    try:
        exec(client, names)
    finally:
        sys.path.remove(str(tmp_path / "app"))
        for module in ("task", "own_my_own"):
            sys.modules.pop(module, None)
    assert {"MyAlgorithm", "MySGD", "app"} <= set(names)
