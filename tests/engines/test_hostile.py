"""Findings of a hostile review: shapes unknown to C code, patched layers, hidden writes, draws on the server."""

from dataclasses import dataclass
from functools import lru_cache, partial
from types import MethodType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.engines import select
from tests.conftest import make_task

AVG, FASTER = fedgbo.FedAvg(fedgbo.SGD(0.1)), fedgbo.FedAvg(fedgbo.SGD(1.0))
rng = np.random.default_rng(0)


def close_to_textbook(task, algorithm=AVG):
    fast, plain = (fedgbo.run(task, algorithm, rounds=3, local_steps=3, engine=name) for name in ("auto", "plain"))
    assert torch.allclose(fast.params, plain.params, atol=1e-5)
    assert fast.history[-1].train_loss == pytest.approx(plain.history[-1].train_loss, rel=1e-4)


def pairs(inputs, targets):
    return fedgbo.FederatedData.from_clients(
        train=[(inputs(), targets()) for _ in range(3)], test=(inputs(), targets())
    )


def numbers(*shape):
    return lambda: rng.normal(size=(16, *shape)).astype("float32")


def test_targets_that_c_code_was_not_read_for():
    whole = pairs(numbers(3), lambda: rng.integers(0, 5, (16, 1)))
    close_to_textbook(fedgbo.Task("t", whole, lambda: nn.Linear(3, 1), batch_size=4, loss=functional.mse_loss))
    soft = pairs(numbers(3), lambda: rng.dirichlet([1.0, 1.0], 16).astype("float32"))
    close_to_textbook(fedgbo.Task("t", soft, lambda: nn.Linear(3, 2), batch_size=4))
    close_to_textbook(
        fedgbo.Task("t", soft, lambda: nn.Linear(3, 2), batch_size=4), fedgbo.FedProx(fedgbo.SGD(0.1), 0.5)
    )


@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_a_loss_that_would_broadcast_is_refused(shape):
    data = pairs(numbers(3), numbers(*{(1,): (3,), (3,): (1,)}[shape]))
    task = fedgbo.Task("t", data, lambda: nn.Linear(3, *shape), batch_size=4, loss=functional.mse_loss)
    with pytest.raises(DataError, match="would be broadcast against targets"):
        fedgbo.run(task, AVG, rounds=1)


def cropped(inputs, rng):
    return inputs[:, :, 1:-1, 1:-1]


def padded(inputs, rng):
    return functional.pad(inputs, (1, 1, 1, 1))


def cnn(*layers):
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), *[layer() for layer in layers], nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize("transform", [cropped, padded])
def test_a_transform_that_changes_the_shape(transform):
    train = [(numbers(1, 8, 8)(), rng.integers(0, 2, 16)) for _ in range(2)]
    data = fedgbo.FederatedData.from_clients(train=train, test=train[0], transform=transform)

    def net():
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))

    close_to_textbook(fedgbo.Task("t", data, net, batch_size=4))


class Doubled(nn.MaxPool2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Reversed(nn.Flatten):
    def forward(self, x):
        return super().forward(x).flip(1)


def tripled(layer, x):
    return functional.linear(x, 3 * layer.weight, layer.bias)


def patched():
    layer = nn.Linear(3, 2)
    layer.forward = MethodType(tripled, layer)
    return layer


def remembered():
    layer = nn.Linear(3, 2)
    layer.forward = lambda x: tripled(layer, x)  # a copy of the layer uses the weights of this one
    return layer


def shared():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].weight.data = model[0].weight.data
    return model


class Counter(nn.Module):
    """Keeps activations in a variable of the function that built its hook."""

    def __init__(self):
        super().__init__()
        seen = torch.zeros(())

        def keep(layer, given, out):
            nonlocal seen
            seen = out.detach().mean()

        self.first, self.last, self.seen = nn.Linear(3, 4), nn.Linear(4, 2), lambda: seen
        self.first.register_forward_hook(keep)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))) * (1 + self.seen())


def test_a_model_whose_functions_assign_variables_has_one_worker(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    task = fedgbo.Task("t", pairs(numbers(3), lambda: rng.integers(0, 2, 16)), Counter, batch_size=4)
    assert "which models of several workers would share" in select.explain(select.engine_for(task, AVG, 0, 2))
    close_to_textbook(task)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.bfloat16)

    def forward(self, x):
        self.linear.weight.data.clamp_(-0.05, 0.05)
        return self.linear(x.bfloat16()).float()


class Hidden(nn.Module):
    """Keeps its layers out of torch's sight, and tells of their parameters itself."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(3, 2)]

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        return self.hidden[0].named_parameters(prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        return self.hidden[0].parameters(recurse)

    def forward(self, x):
        return self.hidden[0](x)


def test_parameters_of_layers_that_torch_does_not_see():
    close_to_textbook(fedgbo.Task("t", pairs(numbers(3), lambda: rng.integers(0, 2, 16)), Hidden, batch_size=4))


def wrapped():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = model[0].forward
    model[0].forward = lambda x: 2 * before(x)
    return model


def cached():
    model = nn.Linear(3, 2)
    model.forward = MethodType(lru_cache(lambda own, x, before=model.forward: before(x)), model)
    return model


@pytest.mark.parametrize("seed", range(5))
def test_a_frozen_scripted_body_is_allowed(seed):
    def model():
        return nn.Sequential(torch.jit.trace(nn.Linear(3, 4).requires_grad_(False), torch.zeros(1, 3)), nn.Linear(4, 2))

    fedgbo.run(make_task(model=model, batch_size=4), AVG, rounds=1, seed=seed)


def hooked():
    model = nn.Linear(3, 2)
    model.weight.register_hook(lambda grad: 0 * grad)
    return model


class Lambdas(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 2), lambda x: self.linear.weight.detach().norm() * x

    def forward(self, x):
        return self.scale(self.linear(x))


class Hooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.seen = nn.Linear(3, 3), None
        self.first.register_forward_hook(lambda *given: setattr(self, "seen", given[2]))

    def forward(self, x):
        self.first(x)
        return self.seen


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("adjacency", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.linear(x)


class Aliased(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mask", self.linear.weight.detach())

    def forward(self, x):
        return self.linear(x) + x @ self.mask.t()


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        return self


IMAGES = pairs(numbers(1, 8, 8), lambda: rng.integers(0, 2, 16))


@pytest.mark.parametrize("layer", [lambda: Doubled(2), Reversed])
def test_subclasses_of_known_layers_are_the_users(layer):
    close_to_textbook(fedgbo.Task("t", IMAGES, cnn(layer), batch_size=4))


def test_a_forward_of_an_instance_is_used():
    close_to_textbook(fedgbo.Task("t", pairs(numbers(3), lambda: rng.integers(0, 2, 16)), patched, batch_size=4))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (remembered, "the model has a function that remembers a part of the model .in its attribute forward"),
        (wrapped, "the layer '0' of the model has a function that remembers a part of the model .in its attribute for"),
        (cached, "reaches the parameter '(weight|bias)' of the module that was copied"),
        (Lambdas, "the model has a function that remembers a part of the model .in its attribute scale"),
        (lambda: nn.Sequential(Hooks(), nn.Linear(3, 2)), "the layer '0.first' of the model has a function"),
        (shared, "'0.weight' and '1.weight' of the model share memory"),
        (Aliased, "'linear.weight' and 'mask' of the model share memory"),
        (hooked, "parameter 'weight' has a hook"),
        (Sparse, "'adjacency' of the model is a sparse tensor"),
        (lambda: Uncopied(3, 2), "copies of the model share its parameter 'weight'"),
        (lambda: torch.jit.script(nn.Linear(3, 2)), "the model is a torch.jit module"),
        (lambda: nn.Sequential(torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3)), nn.Linear(3, 2)), "the layer '0'"),
    ],
)
def test_a_module_of_which_a_copy_would_not_train_is_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        fedgbo.run(make_task(model=model, batch_size=4), AVG, rounds=2)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (lambda: torch.autocast("cpu", torch.bfloat16), "within torch.autocast"),
        (torch.no_grad, "needs gradients"),
        (torch.inference_mode, "needs gradients"),
    ],
)
def test_contexts_of_torch_that_change_training_are_refused(context, message):
    with context(), pytest.raises(ConfigError, match=message):
        fedgbo.run(make_task(batch_size=4), AVG, rounds=2)


class TwoLayers(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.first, self.last, self.call = nn.Linear(3, 6), nn.Linear(6, 2), call

    def forward(self, x):
        return self.call(self.last, torch.tanh(self.first(x)))


@pytest.mark.parametrize(
    "call", [lambda layer, x: functional.linear(x, layer.weight, layer.bias), lambda layer, x: layer.forward(x)]
)
def test_the_term_of_fedmax_needs_to_see_the_last_layer(call):
    task = make_task(model=lambda: TwoLayers(call), batch_size=4)
    with pytest.raises(ConfigError, match="must be called as a layer"):
        fedgbo.run(task, fedgbo.FedMAX(fedgbo.SGD(0.1), beta=1.0), rounds=1)


def test_the_term_of_fedmax_sees_an_input_with_a_name():
    data = pairs(numbers(3), lambda: rng.integers(0, 2, 16))
    task = fedgbo.Task("t", data, lambda: TwoLayers(lambda layer, x: layer(input=x)), batch_size=4)
    close_to_textbook(task, fedgbo.FedMAX(fedgbo.SGD(0.1), beta=1.0))


@dataclass
class Scaled:  # cannot be hashed
    scale: float

    def __call__(self, outputs, targets):
        return self.scale * functional.cross_entropy(outputs, targets)


def test_a_loss_that_cannot_be_hashed():
    data = pairs(numbers(3), lambda: rng.integers(0, 2, 16))
    close_to_textbook(fedgbo.Task("t", data, lambda: nn.Linear(3, 2), batch_size=4, loss=Scaled(0.5)))


class Adds(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.linear, self.in_place = nn.Linear(3, 2), in_place

    def forward(self, x):
        return self.linear(x.add_(1) if self.in_place else x + 1)


def test_a_batch_that_the_model_changes_is_the_same_in_the_second_gradient():
    sam, data = fedgbo.FedSAM(fedgbo.SGD(lr=0.1), rho=0.5), pairs(numbers(3), lambda: rng.integers(0, 2, 16))
    for engine in ("plain", "auto"):
        tasks = (fedgbo.Task("t", data, partial(Adds, in_place), batch_size=4) for in_place in (True, False))
        changed, copied = (fedgbo.run(task, sam, rounds=2, local_steps=2, engine=engine) for task in tasks)
        assert torch.equal(changed.params, copied.params)


def test_batches_of_different_sizes_are_trained_as_they_are():
    def collate(samples):
        kept = [sample for sample in samples if float(sample[0][0]) < 0.5] or samples[:1]
        return torch.stack([torch.as_tensor(x) for x, _ in kept]), torch.tensor([int(y) for _, y in kept])

    train = [(numbers(3)(), rng.integers(0, 2, 16)) for _ in range(4)]
    data = fedgbo.FederatedData.from_clients(train=train, collate=collate)
    close_to_textbook(fedgbo.Task("t", data, lambda: nn.Linear(3, 2), batch_size=4))


class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", None)
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        self.cache = x.detach().mean(0) if self.cache is None else self.cache
        return self.linear(x - self.cache)


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.teacher = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.teacher.weight.mul_(0.9).add_(0.1 * self.linear.weight.detach())
        return self.linear(x) + self.teacher(x)


class Clamped(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Swapped(nn.Linear):
    def __init__(self, how):
        super().__init__(3, 2)
        self.how = how

    def forward(self, x):
        if self.training and self.how == "data":
            self.weight.data = self.weight.data.clamp(-0.1, 0.1)
        elif self.training:
            self.weight = nn.Parameter(self.weight.detach().clamp(-0.1, 0.1))
        return super().forward(x)


class TeacherData(Teacher):
    def forward(self, x):
        k = self.teacher.weight
        k.data = k.data * 0.9 + self.linear.weight.data * 0.1
        return self.linear(x) + self.teacher(x)


class TeacherInPlace(Teacher):
    def forward(self, x):
        self.teacher.weight.data.mul_(0.9)
        return self.linear(x) + self.teacher(x)


class TeacherLater(Teacher):
    """Writes into a frozen parameter from the third step on, with the same norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.steps > 2:
                self.teacher.weight.data.neg_()
        return self.linear(x) + self.teacher(x)


class MaxNorm(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x):
        if (norm := self.weight.norm()) > 1.5:
            self.weight.data = self.weight.data * 1.5 / norm
        return super().forward(x)


class ClampedData(nn.Linear):
    def __init__(self, bound=0.1):
        super().__init__(3, 2)
        self.bound = bound

    def forward(self, x):
        self.weight.data.clamp_(-self.bound, self.bound)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Half, "parameter 'linear.weight' was changed in forward"),
        (lambda: Swapped("data"), "parameter 'weight' was changed in forward"),
        (lambda: Swapped("new"), "parameter 'weight' was changed in forward"),
        (TeacherData, "frozen parameter 'teacher.weight' was changed in forward"),
        (TeacherInPlace, "frozen parameter 'teacher.weight' was changed in forward"),
        (ClampedData, "parameter 'weight' was changed in forward"),
        (Clamped, "parameter 'weight' was changed in forward"),
        (Filled, "'cache' gets its value in forward"),
        (Teacher, "frozen parameter 'teacher.weight' was changed in forward"),
    ],
)
def test_hidden_writes_are_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        fedgbo.run(make_task(model=model, batch_size=4), AVG, rounds=2)


@pytest.mark.parametrize("engine", ["auto", "plain"])
@pytest.mark.parametrize("model", [TeacherLater, MaxNorm])
def test_a_hidden_write_that_begins_later_is_refused_by_every_engine(model, engine):
    with pytest.raises(ConfigError, match="was changed in forward"):
        fedgbo.run(make_task(model=model, batch_size=4), FASTER, rounds=50, local_steps=3, engine=engine)


def test_a_hidden_write_that_begins_later_is_refused():
    task = make_task(model=lambda: ClampedData(0.7), batch_size=4)  # the initial weights are at most 1 / sqrt(3)
    with pytest.raises(ConfigError, match="parameter 'weight' was changed in forward"):
        fedgbo.run(task, fedgbo.FedAvg(fedgbo.SGD(lr=1.0)), rounds=50, engine="plain")


class Writing(fedgbo.FedAvg):
    def client_update(self, down, client):
        down.params.mul_(0.9)
        return super().client_update(down, client)


class Numpy(fedgbo.FedAvg):
    def client_update(self, down, client):
        return fedgbo.State(np.zeros(len(down.params)))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Writing, "wrote into the state that all clients download"),
        (Numpy, "a state of ndarray; it takes torch"),
    ],
)
def test_client_updates_that_are_refused(algorithm, message):
    with pytest.raises(ConfigError, match=message):
        fedgbo.run(make_task(batch_size=4), algorithm(fedgbo.SGD(0.1)), rounds=1)


class First(fedgbo.Aggregator):
    def combine(self, uploads):
        return next(iter(uploads)).state


def test_a_write_is_seen_where_the_aggregator_stops_early():
    with pytest.raises(ConfigError, match="wrote into the state that all clients download"):
        fedgbo.run(make_task(batch_size=4), Writing(fedgbo.SGD(0.1)), rounds=1, aggregator=First())


@dataclass(frozen=True)
class Noisy(fedgbo.FedAvg):
    """A server that draws from process-wide generators."""

    def server_update(self, server, mean, steps):
        noise = torch.randn(len(mean.params)) + np.random.normal()
        return fedgbo.State(server.params - mean.params + 0.01 * noise)


def test_draws_on_the_server_are_reproducible(tmp_path):
    task, algorithm = make_task(batch_size=4), Noisy(fedgbo.SGD(0.1))
    whole = fedgbo.run(task, algorithm, rounds=4)
    torch.manual_seed(3)
    assert torch.equal(fedgbo.run(task, algorithm, rounds=4).params, whole.params)
    fedgbo.run(task, algorithm, rounds=2, out=tmp_path / "run")
    assert torch.equal(fedgbo.run(task, algorithm, rounds=4, out=tmp_path / "run", resume=True).params, whole.params)


@dataclass(frozen=True)
class Wrong(fedgbo.SGD):
    def invert(self, stats, delta, steps):
        return 2 * super().invert(stats, delta, steps)


def test_a_wrong_inverse_inside_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match=r"Wrong.invert does not recover the mean gradient"):
        fedgbo.run(make_task(), fedgbo.FedBuff(fedgbo.FedGBO(Wrong(0.1))), rounds=1)


def three(client):
    return 3


def other_three(client):
    return 9


@pytest.mark.parametrize("what", ["buffers", "local_steps"])
def test_further_changes_that_a_resume_refuses(what, tmp_path):
    def net():
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))

    train = [(numbers(3)(), rng.integers(0, 2, 16)) for _ in range(2)]
    data = fedgbo.FederatedData.from_clients(train=train, client_tests=train)
    other_three.__qualname__, other_three.__module__ = three.__qualname__, three.__module__

    def task(buffers):
        return fedgbo.Task("t", data, net, batch_size=4, buffers=buffers)

    fedgbo.run(task("average"), AVG, rounds=1, local_steps=three, out=tmp_path / "run")
    buffers, steps = ("local", three) if what == "buffers" else ("average", other_three)
    with pytest.raises(fedgbo.RunFolderError, match=f"its {what} is"):
        fedgbo.run(task(buffers), AVG, rounds=2, local_steps=steps, out=tmp_path / "run", resume=True)


def clamped(outputs, targets):
    outputs.clamp_(-0.01, 0.01)
    return (outputs.argmax(1) == targets).sum(), torch.tensor(len(targets))


def test_a_metric_that_writes_into_the_outputs_changes_no_loss():
    def number(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    task = make_task(batch_size=4)
    losses = [
        fedgbo.run(fedgbo.Task("t", task.data, task.model, loss=number, metric=metric), AVG, rounds=1).loss
        for metric in (clamped, None)
    ]
    assert losses[0] == losses[1]


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(self.embedding(x).mean(dim=1))


def test_sparse_gradients_are_made_dense():
    words = pairs(lambda: rng.integers(0, 10, (16, 5)), lambda: rng.integers(0, 2, 16))
    close_to_textbook(fedgbo.Task("t", words, Embedded, batch_size=4))


def test_devices_and_threads(monkeypatch):
    task = make_task(batch_size=4)
    assert fedgbo.run(task, AVG, rounds=1, device=torch.device("cpu")).params is not None
    with pytest.raises(ConfigError, match="device must be cpu, cuda"):
        fedgbo.run(task, AVG, rounds=1, device=0)
    seen = []

    class Asking(nn.Linear):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    torch.set_num_threads(2)
    fedgbo.run(make_task(model=lambda: Asking(3, 2), batch_size=4), AVG, rounds=2, workers=2)
    assert set(seen) == {1}
