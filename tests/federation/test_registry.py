"""Which nodes may host which clients, and which apps a node's operators allowed."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.federation.apps import AppNotAllowed, Apps, guard_client_apps
from fedgbo.federation.control import Control
from fedgbo.federation.network import Address
from fedgbo.federation.superlink import ServerFolder
from fedgbo.flower.registry import Registry, client_numbers


def test_nodes_are_remembered_with_their_clients(tmp_path):
    registry = Registry(tmp_path)
    assert registry.nodes() == {}
    registry.add("hospital-a", 7, b"key a", "0-4")
    registry.add("hospital-b", 8, b"key b", "5")
    assert {name: node.clients for name, node in Registry(tmp_path).nodes().items()} == {
        "hospital-a": "0-4",
        "hospital-b": "5",
    }
    assert {number: node.name for number, node in registry.by_id().items()} == {7: "hospital-a", 8: "hospital-b"}
    assert registry.path.stat().st_mode & 0o777 == 0o600
    registry.check_new("hospital-a", b"key a", "0-3")  # fewer clients than before
    registry.remove("hospital-b")
    assert list(registry.nodes()) == ["hospital-a"]


@pytest.mark.parametrize(
    ("name", "key", "clients", "message"),
    [
        ("hospital-a", b"other", "9", "another node is registered as hospital-a; choose another name"),
        ("hospital-c", b"key a", "9", "this key is registered as hospital-a; a node has one key and one name"),
        ("hospital-c", b"key c", "4-6", "client 4 of hospital-c already belongs to hospital-a; give others"),
        ("hospital-c", b"key c", "1::2", "clients 1, 3 of hospital-c already belongs to hospital-a"),
        ("hospital-c", b"key c", "four", "clients must be numbers such as 0 or 0,3,6 or 0-4 or 1::3, not 'four'"),
    ],
)
def test_names_keys_and_clients_belong_to_one_node(tmp_path, name, key, clients, message):
    registry = Registry(tmp_path)
    registry.add("hospital-a", 7, b"key a", "0-4")
    with pytest.raises(ConfigError, match=message):
        registry.check_new(name, key, clients)


def test_a_node_that_is_not_there_and_a_damaged_file(tmp_path):
    with pytest.raises(ConfigError, match="no node is registered as x \\(registered: none\\)"):
        Registry(tmp_path).remove("x")
    (tmp_path / "nodes.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        Registry(tmp_path).nodes()


@pytest.mark.parametrize("text", ["", "-1", "3-1", "0:2", "1::0", "a", "0,,1"])
def test_numbers_that_are_none(text):
    with pytest.raises(ConfigError, match="clients must be numbers such as"):
        client_numbers(text, 10)


def test_sets_of_client_numbers():
    assert client_numbers("7", 5) == [7]  # not cut off: the caller refuses it
    assert client_numbers("3-1000000000000", 5)[-1] == 5
    assert client_numbers("0, 2", 5) == [0, 2]
    assert client_numbers("9::3", 5) == []


APP = b"an app"
SHA = hashlib.sha256(APP).hexdigest()


def test_an_app_runs_only_if_it_was_allowed(tmp_path):
    apps = Apps(tmp_path / "apps")
    with pytest.raises(AppNotAllowed, match=f"app {SHA} waits for the node's operators to allow it"):
        apps.check(APP, SHA, {"run": 5, "started-by": "me@server", "other": "x"})
    (asked,) = apps.asked()
    assert str(asked) == f"app {SHA} (run 5, started-by me@server)"
    apps.answer(SHA, allowed=False)
    with pytest.raises(AppNotAllowed, match="was refused by the node's operators"):
        apps.check(APP, SHA, {})
    apps.answer(SHA, allowed=True)
    apps.check(APP, SHA, {})
    assert not list(apps.asked())
    with pytest.raises(AppNotAllowed, match="does not have the hash that the server names"):
        apps.check(b"another app", SHA, {})


def test_pins_allow_some_apps_and_refuse_the_others(tmp_path):
    apps, other = Apps(tmp_path / "apps"), "0" * 64
    apps.answer(SHA, allowed=True)
    apps.pin([other])
    assert (apps.read(SHA).state, apps.read(other).state) == ("refused", "allowed")
    with pytest.raises(ConfigError, match="'abc' is not a SHA-256"):
        apps.pin(["abc"])
    (tmp_path / "apps" / f"{SHA}.json").write_text("{")
    with pytest.raises(AppNotAllowed, match="cannot be read; remove it to be asked again"):
        apps.check(APP, SHA, {})


@pytest.mark.parametrize("version", ["1.0.0", "1.0.0.{hash}/../../../evil/x"])
def test_a_server_cannot_name_another_folder_for_an_allowed_app(tmp_path, monkeypatch, version):
    """Flower loads the app from a folder that the server's name and version of it make up."""
    from flwr.supernode.runtime import run_clientapp

    apps, found, sha = Apps(tmp_path / "apps"), {}, hashlib.sha256(APP).hexdigest()
    apps.answer(sha, allowed=True)
    run = SimpleNamespace(run_id=1, fab_id="a/hearts", fab_version=version.format(hash=sha[:8]))
    task = (None, SimpleNamespace(run_config={}), run, SimpleNamespace(hash_str=sha))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    place = tmp_path / "apps" / f"a.hearts.1.0.0.{sha[:8]}"
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda runtime: task)
    monkeypatch.setattr(run_clientapp, "install_from_fab", lambda content: place)
    guard_client_apps(apps, lambda module, **parts: found.update(parts), BaseException)
    found["pull_task_input"](None)
    if version == "1.0.0":
        assert found["install_from_fab"](APP) == place
        return
    with pytest.raises(AppNotAllowed, match="another name or version than the server says"):
        found["install_from_fab"](APP)


def test_operators_who_register_nodes_at_the_same_time_lose_none(tmp_path):
    """The SuperLink takes a moment, in which others may read the same registry."""

    def register(number, clients):
        client = SimpleNamespace(RegisterNode=lambda request: time.sleep(0.05) or SimpleNamespace(node_id=number))
        control = Control(ServerFolder(tmp_path), Address("127.0.0.1", 1), client)
        try:
            return control.register(Registry(tmp_path), b"key %d" % number, f"hospital-{number}", clients)
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(register, range(6), map(str, range(6))))
        assert len(Registry(tmp_path).nodes()) == 6
        both = list(pool.map(register, (6, 7), ("9", "9")))
    assert sorted(map(str, both))[0] == "True"
    assert "client 9" in sorted(map(str, both))[1]


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nWARNING hospital-b", "a [red]", "hospital-а", "\u202ea", ""])
def test_a_registered_name_cannot_forge_what_is_shown(tmp_path, name):
    """It is the name of a file that somebody sent."""
    control = Control(ServerFolder(tmp_path), Address("127.0.0.1", 1), SimpleNamespace())
    with pytest.raises(ConfigError, match="cannot be a node's name") as refused:
        control.register(Registry(tmp_path), b"key", name, "0")
    assert "\x1b" not in str(refused.value)
    assert not Registry(tmp_path).nodes()
