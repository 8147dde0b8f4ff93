"""The same in Flower's own simulation runtime: one of them for all algorithms, since it takes long to start."""

import pytest
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from fedgbo.flower import Options, client_app
from tests.flower.federations import COMBINATIONS, algorithm_of, federate, simulate, some, told

ONE_CORE_EACH = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


@pytest.mark.slow
def test_every_algorithm_in_a_simulation():
    found, server = {}, ServerApp()

    @server.main()
    def main(grid, context):
        options = Options(deadline=120, wait=120, min_nodes=3, poll=0.02)
        for combination in COMBINATIONS:
            algorithm = algorithm_of(combination)
            found[combination] = told(federate(some, algorithm, grid=grid, options=options))

    run_simulation(server, client_app(some), num_supernodes=3, backend_config=ONE_CORE_EACH)
    assert found == {combination: told(simulate(some, algorithm_of(combination))) for combination in COMBINATIONS}
