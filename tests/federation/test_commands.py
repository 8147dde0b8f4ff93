"""The commands, in this process and as real ones."""

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedgbo.cli.federation_nodes import node_settings
from fedgbo.cli.main import app
from fedgbo.core.errors import ConfigError
from fedgbo.federation.credentials import make_certificates, make_node
from fedgbo.federation.monitor import digest_of, simulated
from fedgbo.federation.network import Address, free_ports
from fedgbo.federation.processes import Process, process_tree
from fedgbo.federation.signatures import Welcome
from fedgbo.federation.superlink import ServerFolder
from fedgbo.federation.supernode import NodeWatch, node_config
from tests.cli.test_processes import wait_for


def call(*args):
    return CliRunner().invoke(app, ["federation", *map(str, args)])


def test_up_checks_before_it_trains_that_the_run_can_be_repeated(tmp_path):
    (tmp_path / "ours.py").write_text("def ours(config):\n    raise AssertionError\n")
    args = ["--task", f"{tmp_path / 'ours.py'}:ours", "--algorithm", "fedavg", "--rounds", 1, "lr=0.1"]
    refused = call("up", *args, "--check", "--out", tmp_path / "f")
    assert refused.exit_code == 2
    assert "needs config, which nodes give it; leave --check out" in " ".join(refused.stderr.split())
    assert not (tmp_path / "f").exists()


def test_certs_key_and_new_say_what_to_do_next(tmp_path):
    made = call("certs", tmp_path / "server", "--host", "fl.example.org")
    assert made.stdout == f"{tmp_path / 'server' / 'ca.crt'}\n"
    assert "valid for fl.example.org, localhost, 127.0.0.1; send ca.crt, and no other file" in made.stderr
    made = call("key", tmp_path / "hospital-a")
    assert made.stdout == f"{tmp_path / 'hospital-a' / 'hospital-a.pub'}\n"
    made = call("new", tmp_path / "app", "--task", "digits", "--algorithm", "fedavg", "--rounds", 3, "-c", "deadline=9")
    assert made.stdout == f"{tmp_path / 'app'}\n"
    assert f"fedgbo run {tmp_path / 'app' / 'settings.toml'}" in made.stderr
    assert "deadline = 9" in (tmp_path / "app" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["register", "nowhere", "k.pub", "--clients", "0"], 2, "there is no public key k.pub"),
        (["serve", "nowhere"], 4, "lacks ca.crt, server.crt, server.key; make them with: fedgbo federation certs"),
        (
            ["join", "there", "--node", "a", "--ca", "ca.crt", "--clients", "0"],
            2,
            "'there' is not an address; give host:port",
        ),
        (["join", "127.0.0.1:1", "--node", "a", "--ca", "c", "--any-app", "--app-sha256", "0"], 2, "not both"),
        (["join", "127.0.0.1:1", "--node", "a", "--ca", "c"], 4, "c is not the certificate of an authority"),
        (["join", "--settings", "no.toml"], 2, "no.toml cannot be read as TOML"),
        (["allow", "a", "123"], 2, "'123' is not a SHA-256"),
        (["nodes", "nowhere"], 4, "no server runs from"),
        (["status", "nowhere"], 4, "no server runs from"),
        (["stop", "nowhere"], 4, "no server runs from"),
        (["attach", "nowhere"], 4, "no server runs from"),
        (["unregister", "nowhere", "hospital-a"], 4, "no server runs from"),
        (["run", "nowhere", "noapp"], 2, "there is no file noapp/settings.toml"),
        (
            ["up", "--resume", "nowhere", "--task", "digits"],
            2,
            "--resume uses the settings of the federation",
        ),
        (["up", "--nodes", "0"], 2, "nodes must be a whole number of at least 1"),
        (["up", "--nodes", "1000"], 2, "1000 nodes are too many for one machine"),
        (["up", "-c", "dedline=3"], 2, "did you mean 'deadline'?"),
        (["digest", "nowhere"], 4, "there is no folder"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, monkeypatch, args, code, message):
    monkeypatch.chdir(tmp_path)
    done = call(*args)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_command_to_go_on_is_one_that_goes_on(tmp_path):
    place = tmp_path / "a [b] 'c'"
    call("new", place / "app", "--task", "digits", "--algorithm", "fedavg")
    nothing = Address("127.0.0.1", free_ports(1)[0])
    ServerFolder(place).note(nothing, nothing)
    make_certificates(place)
    options = ["-c", "weighted=true"]
    done = call("run", place, place / "app", "--out", place / "run", *options)
    assert done.exit_code == 7
    expected = ["fedgbo", "federation", "run", str(place), str(place / "app"), "--out", str(place / "run"), *options]
    assert shlex.split(done.stderr.partition("resume with: ")[2]) == expected  # not --resume: there is no run yet


def test_paths_are_printed_as_they_are(tmp_path):
    made = call("new", tmp_path / "a [b]", "--task", "digits", "--algorithm", "fedavg")
    assert made.stdout == f"{tmp_path / 'a [b]'}\n"
    assert f"fedgbo run '{tmp_path}/a [b]/settings.toml'" in made.stderr


def test_a_node_hosts_the_clients_that_it_is_registered_for():
    welcome = Welcome("hospital-a", "0-2")
    assert node_settings(None, welcome, ["data=7"]) == {"clients": "0-2", "data": "7"}
    assert node_settings("1", welcome, None) == {"clients": "1"}
    with pytest.raises(ConfigError, match="registered as hospital-a for clients 0-2, not for clients 3, 4; leave"):
        node_settings("0-4", welcome, None)
    with pytest.raises(ConfigError, match="'data' must be key=value"):
        node_settings(None, welcome, ["data"])


def test_what_a_node_is_told_arrives_at_flower():
    from flwr.common.config import parse_config_args

    config = {"data": "/srv/my 😀 \\records' of=2026.csv", "clients": "0,3", "partition-id": 1}
    assert parse_config_args([node_config(config)]) == config


def test_a_port_that_is_taken(tmp_path):
    import socket

    make_certificates(tmp_path / "server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call("serve", tmp_path / "server", "--port", taken.getsockname()[1])
    assert done.exit_code == 2
    assert "cannot listen on 127.0.0.1:" in done.stderr


def test_a_node_tells_what_its_log_tells(tmp_path):
    program = "print('[RUN 1, ROUND 3]\\n[RUN 1, ROUND 3]\\nConnection attempt failed, x')\n"
    program += "print('this node cannot take part: the server has fedgbo 2, this node 1', end='')"
    process = Process.start("it", [sys.executable, "-c", program], {}, tmp_path / "log")
    process.popen.wait()
    watch = NodeWatch(tmp_path / "none")
    watch._tail.path = process.log
    assert list(watch.new()) == ["round 3", "the server does not answer; trying again"]  # the last line is not whole
    with process.log.open("a") as more:
        more.write("; install the same version on both\n")
    assert list(watch.new()) == [
        "this node cannot take part: the server has fedgbo 2, this node 1; install the same version on both"
    ]


def test_a_long_log_is_read_once(tmp_path):
    process = Process.start("it", ["true"], {}, tmp_path / "log")
    process.popen.wait()
    watch = NodeWatch(process.log)
    process.log.write_bytes(b"much to tell\n" * 100_000 + b"[RUN 1, ROUND 3]\n")
    assert list(watch.new()) == ["round 3"]

    def bytes_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    before = bytes_read()
    for _ in range(10):
        assert list(watch.new()) == []
    assert bytes_read() - before < 100_000


def test_a_task_that_needs_a_node_is_not_said_to_run_without(tmp_path):
    (tmp_path / "mine.py").write_text("import fedgbo.tasks\n\ndef hearts(config):\n    raise NotImplementedError\n")
    made = call("new", tmp_path / "app", "--task", f"{tmp_path}/mine.py:hearts", "--algorithm", "fedavg", "lr=0.1")
    assert made.stdout == f"{tmp_path / 'app'}\n", made.stderr
    assert "fedgbo run" not in made.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("federation")
def test_refusals_at_the_client_as_its_person_sees_them(federation, tmp_path):
    server = federation.folder.server
    make_node(tmp_path / "stranger")
    make_certificates(tmp_path / "other")

    def join(*args):
        command = [sys.executable, "-m", "fedgbo", "federation", "join", str(server.address())]
        command += ["--node", str(tmp_path / "stranger"), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    for args, message in (
        (["--ca", server.ca], "refused: the server at 127.0.0.1"),
        (["--ca", tmp_path / "other" / "ca.crt"], "was not signed by the authority in"),
    ):
        done = join(*args)
        assert (done.returncode, message in done.stderr) == (7, True), done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("federation")
def test_new_and_run_on_a_server_that_runs(federation, task_file, tmp_path):
    """A task of the user's own goes to the nodes inside the app."""
    settings = ["--algorithm", "fedgbo", "--optimiser", "sgdm", "lr=0.1", "beta=0.9", "--rounds", 1, "local_steps=2"]
    assert call("new", tmp_path / "app", "--task", f"{task_file}:small", *settings).exit_code == 0
    done = call("run", federation.folder.server.path, tmp_path / "app", "--out", tmp_path / "run", "--check")
    assert done.exit_code == 0, done.stderr
    assert "round 1 of 1 done" in done.stderr
    assert done.stdout.endswith("the same, bit for bit\n")
    assert digest_of(tmp_path / "run") == simulated(tmp_path / "run")
    assert call("digest", tmp_path / "run", "--json").exit_code == 0
    again = call("run", federation.folder.server.path, tmp_path / "app", "--out", tmp_path / "run")
    assert again.exit_code == 2
    assert f"resume it with --resume {tmp_path / 'run'}" in again.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("federation")
def test_a_server_remembers_its_nodes(tmp_path):
    server, node = ServerFolder(tmp_path / "server"), make_node(tmp_path / "hospital-a")
    make_certificates(server.path)
    for said in ("registered for clients 0-1", "was already registered"):
        command = [sys.executable, "-m", "fedgbo", "federation", "serve", str(server.path)]
        process = subprocess.Popen(
            [*command, "--port", str(free_ports(1)[0])], stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        try:
            wait_for(lambda process=process: (server.path / "server.json").exists() or process.poll() is not None, 120)
            done = call("register", server.path, node.public_key, "--clients", "0-1")
            assert f"hospital-a: {said}" in done.stdout, done.stderr
            marks = process_tree([process.pid])
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0, err
        assert "registered nodes are remembered" in err
        assert not any(mark.alive for mark in marks)
    assert "no server runs from" in call("register", server.path, node.public_key, "--clients", "0").stderr


def test_arguments_may_stand_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "node.toml"
    file.write_text('address = "127.0.0.1:1"\nnode = "a"\nca = "none.crt"\n[config]\ndata = "x.csv"\n')
    assert "none.crt is not the certificate of an authority" in call("join", "--settings", file).stderr
    assert "other.crt is not the certificate" in call("join", "--settings", file, "--ca", "other.crt").stderr
    file.write_text('folder = "nowhere"\nhots = "0.0.0.0"\n')
    assert "unknown key 'hots' (known: folder, host, max_reply, port)" in call("serve", "--settings", file).stderr


@pytest.mark.parametrize(
    ("kind", "said"), [("server", "/srv/fedgbo/server lacks ca.crt"), ("node", "/srv/fedgbo/ca.crt is not the cert")]
)
def test_units_and_compose_file_start_commands_that_exist(kind, said):
    """Each command reads its settings, and stops for the lack of certificates."""
    deploy = Path(__file__).parents[2] / "deploy"
    unit = (deploy / f"fedgbo-{kind}.service").read_text()
    (command,) = re.findall(r"ExecStart=/srv/fedgbo/venv/bin/fedgbo federation (.*)", unit)
    service = yaml.safe_load((deploy / "compose.yaml").read_text())["services"][kind]
    assert service["command"] == shlex.split(command)
    mounted = {one.split(":")[1] for one in service["volumes"]}
    settings = tomllib.loads((deploy / f"{kind}.toml").read_text())
    paths = [settings.get(key) for key in ("folder", "node", "ca")] + [settings.get("config", {}).get("data")]
    assert {*filter(None, paths), f"/srv/fedgbo/{kind}.toml"} <= mounted
    assert said in call(*(word.replace("/srv/fedgbo", str(deploy)) for word in service["command"])).stderr
