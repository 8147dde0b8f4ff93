"""FedJAX on one of the bench's models. A program for a Python that has FedJAX, and neither torch nor fedgbo.

Arguments: a JSON file with settings and layers, an .npz file with the data and initial weights, and the file for
the answer. `fedgbo.bench.peers` writes the first two and reads the third.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def main(settings_file: str, arrays_file: str, answer: str) -> None:
    """Measure FedJAX with each of its backends, and write down the better one."""
    settings, arrays = json.loads(Path(settings_file).read_text()), dict(np.load(arrays_file))
    found = [measure("jit", settings, arrays)]
    try:
        found.append(measure("pmap", settings, arrays))
    except AttributeError as error:  # newer versions of JAX lack what this backend needs
        sys.stderr.write(f"FedJAX's backend pmap does not work with this JAX: {error}\n")
    best = max(found, key=lambda one: one["steps"] / one["seconds"])
    Path(answer).write_text(json.dumps(best))


def measure(backend: str, settings: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return rounds, local steps and seconds of FedJAX's federated averaging."""
    import jax  # type: ignore[import-not-found]

    for name in ("tree_map", "tree_leaves"):  # which FedJAX 0.0.17 uses and newer versions of JAX removed
        if not hasattr(jax, name):
            setattr(jax, name, getattr(jax.tree_util, name))
    import fedjax  # type: ignore[import-not-found]

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        scores = jax.nn.log_softmax(forward(settings["layers"], params, batch["x"]))
        return -scores[jax.numpy.arange(len(scores)), batch["y"]].mean()

    offsets, cohort, local_steps = arrays["offsets"], settings["cohort"], settings["local_steps"]
    clients = [
        fedjax.ClientDataset({"x": arrays["inputs"][begin:end], "y": arrays["targets"][begin:end]})
        for begin, end in itertools.pairwise(offsets)
    ]
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=settings["batch_size"], num_steps=local_steps)
    fedjax.set_for_each_client_backend(backend)
    sgd = fedjax.optimizers.sgd
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(jax.grad(loss), sgd(settings["lr"]), sgd(1.0), batches)
    weights = [
        {name: arrays[f"{i}.{name}"] for name in ("weight", "bias") if f"{i}.{name}" in arrays}
        for i in range(len(settings["layers"]))
    ]
    state = algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, weights))
    began = 0.0
    for t in itertools.count():
        if t == 2:  # after two rounds that compile
            began = time.perf_counter()
        chosen = np.random.default_rng(t).choice(len(clients), cohort, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(t), cohort)
        state, _ = algorithm.apply(state, [(int(c), clients[c], key) for c, key in zip(chosen, keys, strict=True)])
        jax.block_until_ready(state.params)
        if t > 1 and (took := time.perf_counter() - began) >= settings["seconds"] / 2:
            return {"rounds": t - 1, "steps": (t - 1) * cohort * local_steps, "seconds": took}
    raise AssertionError


def forward(layers: list[dict[str, Any]], params: Any, x: Any) -> Any:
    """Return the scores of a stack of layers."""
    from jax import lax, nn

    for layer, own in zip(layers, params, strict=True):
        kind = layer["kind"]
        if kind == "Flatten":
            x = x.reshape(len(x), -1)
        elif kind == "ReLU":
            x = nn.relu(x)
        elif kind == "Linear":
            x = x @ own["weight"].T + own["bias"]
        elif kind == "Conv2d":
            pads = [(layer["padding"], layer["padding"])] * 2
            x = lax.conv_general_dilated(x, own["weight"], [layer["stride"]] * 2, pads)
            x = x + own["bias"][:, None, None]
        else:  # MaxPool2d
            size = (1, 1, layer["size"], layer["size"])
            x = lax.reduce_window(x, -np.inf, lax.max, size, size, "VALID")
    return x


if __name__ == "__main__":
    main(*sys.argv[1:])
