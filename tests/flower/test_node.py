"""What a node hosts, and how its task is built."""

import numpy as np
import pytest
import torch
from ray import cloudpickle
from torch import nn

from fedgbo.core.errors import ConfigError
from fedgbo.flower import client_app
from fedgbo.flower.node import OTHER_MODEL, build_task, hosted_clients, model_digest, spread
from tests.conftest import make_task
from tests.flower.federations import SOME_NODES, events, everyone, federate, nodes
from tests.flower.grids import LocalGrid


def test_clients_by_name_or_by_partition():
    assert hosted_clients({"clients": "4,0"}, clients=6) == [0, 4]
    assert hosted_clients({"clients": 3}, clients=6) == [3]
    assert hosted_clients({"clients": "1-3"}, clients=6) == [1, 2, 3]
    assert hosted_clients({"clients": "1::3"}, clients=6) == [1, 4]
    assert hosted_clients({"partition-id": 2, "num-partitions": 4}, clients=6) == [2]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "must say which clients this node hosts"),
        ({"clients": "zero"}, "numbers such as 0 or 0,3,6 or 0-4"),
        ({"clients": "0,6"}, r"within 0 \.\.\. 5"),
        ({"clients": "-1"}, "numbers such as 0 or 0,3,6 or 0-4"),
        ({"partition-id": 4, "num-partitions": 4}, r"partition-id must be 0 \.\.\. 3"),
        ({"partition-id": -1, "num-partitions": 4}, r"partition-id must be 0 \.\.\. 3"),
        ({"partition-id": "x", "num-partitions": 4}, "must be whole numbers"),
    ],
)
def test_what_a_node_may_not_say(config, reason):
    with pytest.raises(ConfigError, match=reason):
        hosted_clients(config, clients=6)


def test_own_data_gets_the_federations_numbers():
    data = make_task(clients=2, samples=5).data
    assert np.diff(spread(data, (1, 3), clients=5).offsets).tolist() == [0, 5, 0, 5, 0]
    assert spread(data, (), clients=2) is data
    with pytest.raises(ConfigError, match="has 2 clients; it must have all 5 of the federation, or just the 3"):
        spread(data, (0, 1, 2), clients=5)


def with_settings(samples=3):
    return make_task(samples=samples)


def with_config(config, samples=3):
    return make_task(clients=config["how-many"], samples=samples)


def no_task():
    return 3


def with_two(one, other):
    raise AssertionError


def test_a_builder_gets_what_it_asks_for():
    assert len(build_task(with_settings, {"samples": 5}, {}).data.train) == 20
    assert build_task(with_config, {"samples": 5}, {"how-many": 7}).data.clients == 7
    assert build_task("digits", {}, {}).data.clients == 50
    with pytest.raises(ConfigError, match="may have one argument without a default"):
        build_task(with_two, {}, {})
    with pytest.raises(ConfigError, match="unknown task 'digit'"):
        build_task("digit", {}, {})
    with pytest.raises(ConfigError, match=r"must return a fedgbo\.Task, not int"):
        build_task(no_task, {}, {})


def test_a_server_cannot_make_a_node_build_another_task():
    assert build_task("digits", {"name": "/tmp/evil.py:task"}, {}).name == "digits"


def test_a_task_is_built_once_in_a_process():
    first = build_task(everyone, {}, {"partition-id": 0})
    assert first is build_task(everyone, {}, {"partition-id": 1})


def test_the_app_that_a_simulation_copies_with_every_message_holds_no_data():
    app = client_app("digits")
    federate(everyone, grid=LocalGrid(nodes(everyone)), rounds=1)
    assert len(cloudpickle.dumps(app)) < 5_000


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.frozen = nn.Parameter(torch.tensor(value), requires_grad=False)

    def forward(self, x):
        return x * self.frozen


def test_models_are_told_apart_by_names_shapes_types_and_frozen_values():
    def digest_of(model):
        return model_digest(make_task(model=model), 0)

    plain = digest_of(lambda: nn.Linear(3, 2))
    assert plain == digest_of(lambda: nn.Linear(3, 2))
    others = [lambda: nn.Linear(3, 3), lambda: nn.Sequential(nn.Linear(3, 2)), lambda: nn.Linear(3, 2).double()]
    assert plain not in [digest_of(model) for model in others]
    frozen = [digest_of(lambda w=w: nn.Sequential(nn.Linear(3, 2), Constant(w))) for w in (1.0, 2.0)]
    assert frozen[0] != frozen[1]


def other_model():
    return make_task(clients=6, batch_size=4, model=lambda: nn.Linear(3, 2))


def test_a_node_with_another_model_cannot_join_and_says_so_in_its_log(tmp_path, caplog):
    homes = [*nodes(everyone)[:2], (client_app(other_model), {"partition-id": 2, "num-partitions": 3})]
    federate(everyone, grid=LocalGrid(homes), rounds=1, out=tmp_path / "run", options=SOME_NODES)
    (refused,) = events(tmp_path / "run", "refused")
    reason = OTHER_MODEL
    assert refused["reason"] == reason
    assert f"this node cannot take part: ConfigError: {reason}" in caplog.text


def with_patients():
    raise ValueError("could not convert string 'JOHN DOE, 1961'")


def test_the_text_of_an_exception_stays_on_the_node(tmp_path, caplog):
    homes = [*nodes(everyone)[:2], (client_app(with_patients), {"partition-id": 2, "num-partitions": 3})]
    federate(everyone, grid=LocalGrid(homes), rounds=1, out=tmp_path / "run", options=SOME_NODES)
    (refused,) = events(tmp_path / "run", "refused")
    assert refused["reason"] == "its task cannot be built: ValueError; the node's log says more"
    file = tmp_path / "run" / "events.jsonl"
    assert "DOE" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "this node cannot take part: DataError: could not convert string 'JOHN DOE, 1961'" in caplog.text
