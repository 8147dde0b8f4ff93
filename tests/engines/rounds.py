"""One round on an engine, without the loop around it, and an example of every algorithm."""

from fedgbo.costs.operations import Meter
from fedgbo.engines.client import SimulatedClient
from fedgbo.engines.engine import Round
from fedgbo.pipeline import Pipeline
from tests.examples import ALGORITHMS as EXAMPLES  # noqa: F401 - tests of engines take it from here


class States:
    """Client states in a dict."""

    def __init__(self):
        self.kept = {}

    def load(self, client, initial):
        return {name: x.clone() for name, x in self.kept.get(client, initial).items()}

    def save(self, client, t, state):
        self.kept[client] = {name: x.clone() for name, x in state.items()}


def round_of(engine, algorithm, cohort, steps, t=0, *, down=None, states=None, transforms=(), aggregator=None):
    """Return round t from the initial model, or from `down`, with the mean over clients unless told otherwise."""
    if down is None:
        down = algorithm.broadcast(algorithm.init(engine.origin.params))
    pipeline = Pipeline.of(len(cohort), None, transforms, aggregator, "clients")
    return Round(t, algorithm, down, list(cohort), list(steps), pipeline, Meter(algorithm), states or States())


def train(engine, algorithm, cohort, steps, t=0, **more):
    """Train the cohort; return what it gave."""
    return engine.train(round_of(engine, algorithm, cohort, steps, t, **more))


def client_of(engine, algorithm, client=1, steps=1, t=0, **more):
    """Return one client of a plain engine, on the engine's own model."""
    return SimulatedClient(
        engine, engine.model, round_of(engine, algorithm, [client], [steps], t, **more), client, steps
    )


def vectors(gathered):
    """Return the combined vectors by name."""
    return {"params": gathered.mean.params, **gathered.mean.stats}


def numbers(gathered):
    """Return all that a round says besides its vectors and times."""
    names = ("steps", "loss", "clients", "local_steps", "gradients", "operations", "download_bytes", "upload_bytes")
    return {name: getattr(gathered, name) for name in names}
