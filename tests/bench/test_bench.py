import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedgbo.bench.growth import Growth, _along, crowd, write_crowd
from fedgbo.bench.models import MODELS
from fedgbo.bench.peers import Peer
from fedgbo.bench.picture import LIMIT, OURS, PEER, growth_chart, speed_chart
from fedgbo.bench.plain import PlainLoop
from fedgbo.bench.race import BenchError, Contender, Lap, _with_better_threads, prepare, race
from fedgbo.bench.report import WANTED, Row, contender, shortfalls
from fedgbo.costs.flops import forward_macs
from fedgbo.costs.operations import Meter
from fedgbo.engines.engine import Round
from fedgbo.engines.select import engine_for
from fedgbo.pipeline import Pipeline
from fedgbo.pipeline.samplers import FixedSize
from fedgbo.tasks.digits import digits
from tests.cli.conftest import command  # noqa: F401 - a fixture
from tests.cli.test_processes import children, wait_for


def row(**changes):
    given = {
        "task": "cifar100", "algorithm": "fedgbo", "steps_per_second": 200.0, "plain_steps_per_second": 80.0,
        "plain_threads": 1, "ratio": 2.5, "limit": 0.6, "server": 0.04, "peak_bytes": 1, "plain_peak_bytes": 1,
        "to_fedavg": 0.97,
    }  # fmt: skip
    return Row(**(given | changes))


def test_what_does_not_hold_is_said():
    assert shortfalls([row()]) == []
    said = shortfalls([row(ratio=2.2), row(server=0.09), row(to_fedavg=0.91)])
    assert [text.split(":")[1].split(",")[0] for text in said] == [
        " 2.20 times the plain loop",
        " the server takes 9.0% of a round",
        " 9% slower than FedAvg",
    ]
    assert set(WANTED) == {"cifar100", "femnist", "shakespeare", "sent140", *MODELS}


PARAMETERS = {
    "logistic": 610, "mlp": 101_770, "small-cnn": 17_258, "mcmahan-cnn": 1_663_370, "lstm": 213_712,
    "transformer": 295_760, "resnet18": 11_172_170,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_people_use(name):
    """Each has its usual size, can be counted, and trains."""
    who = contender(name, "ours", "fedavg")
    task = who.build_task()
    module = task.model()
    inputs, targets = task.data.train.batch(np.arange(2))
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]
    assert forward_macs(module, inputs) > 0
    assert torch.isfinite(task.loss(module(inputs), targets))
    assert (task.data.clients, who.local_steps) == (20, MODELS[name].local_steps)


def test_the_plain_loop_takes_the_better_number_of_threads():
    def lap(seconds):
        threads = torch.get_num_threads()
        return Lap(1, 10 if threads == 1 else 7, 1.0, 0.0, 1, 1, threads)

    before = torch.get_num_threads()
    try:
        turn = _with_better_threads(lap)
        torch.set_num_threads(2)
        assert turn(0.0).threads == 2  # warming up
        assert [turn(0.1).threads for _ in range(2)] == [1, 1]
    finally:
        torch.set_num_threads(before)


def test_the_pictures():
    grown = [Growth("local steps", (1, 10), (2.0, 11.0), (5, 5), 0.74)]
    peers = [Peer("fedjax", "mlp", 90.0, ""), Peer("pfl", "mlp", 30.0, "")]
    speed = speed_chart([row(task="mlp", algorithm="fedavg"), row(task="mlp")], peers).to_dict()
    points = {p["who"]: p["times"] for p in speed["layer"][1]["data"]["values"]}
    assert points == {OURS: 2.5, PEER: 90.0 / 80.0, LIMIT: pytest.approx(2.5 / 0.6)}
    linear = growth_chart(grown).to_dict()["concat"][0]["layer"][0]["data"]["values"]
    assert [p["ms"] for p in linear] == pytest.approx([1.1, 11.0])


@pytest.mark.parametrize("beta", [None, 0.9])
def test_the_plain_loop_computes_what_ours_does(beta):
    task = replace(digits(), clients_per_round=None)  # all of them, so that both train the same
    algorithm = Contender("ours", "digits", "fedavg" if beta is None else "fedgbo", lr=0.05).build_algorithm()
    engine = engine_for(task, algorithm, seed=0)
    plain = PlainLoop(task, local_steps=3, lr=0.05, beta=beta)
    everyone = list(range(task.data.clients))
    torch.nn.utils.vector_to_parameters(engine.origin.params.clone(), plain.model.parameters())
    state = algorithm.init(engine.origin.params)
    for t in range(2):
        steps = [3] * len(everyone)
        work = Round(t, algorithm, state, everyone, steps, Pipeline(FixedSize(1)), Meter(algorithm))
        state = algorithm.server_update(state, engine.train(work).mean, 3.0)
        assert plain.round(t) == 3 * len(everyone)
    got = torch.nn.utils.parameters_to_vector(plain.model.parameters())
    moved = torch.linalg.vector_norm(state.params - engine.origin.params)
    assert moved > 1e-3
    assert torch.linalg.vector_norm(got - state.params) < 1e-3 * moved


def test_contenders_take_turns_and_say_what_they_did(tmp_path):
    write_crowd(tmp_path / "crowd", 20)
    task = partial(crowd, str(tmp_path / "crowd"), 8)
    plain = Contender("plain", "crowd", builder=task)
    laps = race([Contender("ours", "crowd", builder=task), plain], 0.05, 2)
    for mine in laps:
        assert len(mine) == 2
        for lap in mine:
            assert lap.steps == lap.rounds * 100
            assert lap.seconds >= 0.05
            assert lap.peak_bytes > lap.file_bytes > 0
    assert 0 < laps[0][0].server_seconds < laps[0][0].seconds


def test_a_contender_that_fails_says_why(tmp_path):
    with pytest.raises(BenchError, match="holds no packed data"):
        race([Contender("ours", "crowd", builder=partial(crowd, str(tmp_path), 8))], 0.01, 1)


def test_growth_is_an_exponent(tmp_path):
    write_crowd(tmp_path / "crowd", 40)
    task = partial(crowd, str(tmp_path / "crowd"), 256)

    def cohort(size):
        return Contender("ours", "crowd", clients_per_round=size, builder=task)

    found = _along("clients per round", (2, 32), cohort, 0.1, 3)
    assert isinstance(found, Growth)
    assert 0.3 < found.exponent < 1.3
    assert task().data.clients == 40


def test_a_product_counts_its_operations():
    lap = prepare(Contender("product"))(0.0)
    assert (lap.rounds, lap.steps) == (1, 2 * 2048**3)


def test_the_command(command):  # noqa: F811
    result = command("bench", "--tasks", "logistic", "--seconds", "0.05", "--repeats", "1", "--no-growth", "--json")
    content = json.loads(result.stdout)
    assert [r["algorithm"] for r in content["rows"]] == ["fedavg", "fedgbo"]
    assert content["rows"][0]["ratio"] > 1
    assert isinstance(content["shortfalls"], list)


def test_an_unknown_task_is_named(command):  # noqa: F811
    result = command("bench", "--tasks", "cifar10", check=False)
    assert result.returncode == 2
    assert "unknown task 'cifar10'" in result.stderr


@pytest.mark.slow
def test_ctrl_c_while_the_processes_import_prints_no_traceback(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgbo", "bench"], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_for(lambda: len(children(process.pid)) > 3)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of its processes
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "Traceback" not in said
