"""Models that users bring: trained as torch would, with the same bits for any number of workers and after a resume."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.errors import ConfigError, DataError
from fedgbo.engines import select
from tests.conftest import make_task

AVG = fedgbo.FedAvg(fedgbo.SGD(0.1))
GBO = fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9))
RUN = {"rounds": 4, "local_steps": 3}


def run(task, algorithm=GBO, **settings):
    return fedgbo.run(task, algorithm, **{**RUN, **settings})


def bits(result):
    return {name: x.clone() for name, x in result.state.tensors().items()}


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


class Fourier(nn.Module):
    """Random features in a buffer that nobody trains."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(3, 16))
        self.linear = nn.Linear(16, 2)

    def forward(self, x):
        return self.linear(torch.cos(x @ self.frequencies))


class Counter(nn.Module):
    """Writes buffers in forward: one in place, one by assignment, one integer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.scale.mul_(0.9).add_(0.1 * x.detach().abs().mean(0))
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear((x - self.mean) / self.scale)


class NumpyNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        noise = torch.from_numpy(np.random.normal(size=x.shape)).to(x) + random.random()
        return self.linear(x + noise if self.training else x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.two(torch.tanh(self.one(x))))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4).to(torch.bfloat16), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.to(torch.bfloat16))).float())


MODELS = {
    "fourier": Fourier,
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
    "counter": Counter,
    "numpy": NumpyNoise,
    "dropout": lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2)),
    "tied": Tied,
    "mixed": Mixed,
    "bf16": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(torch.bfloat16),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2)),
    "weight_norm": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2))),
    "parametrised weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 2)),
    "shared": (lambda net: lambda: net)(nn.Linear(3, 2)),
    "a module": nn.Linear(3, 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_bits_do_not_depend_on_workers_or_a_resume(name, tmp_path, monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    task = make_task(model=MODELS[name], batch_size=4)
    whole = bits(run(task, workers=1))
    same(bits(run(task, workers=2)), whole)
    run(task, rounds=2, out=tmp_path / "run")
    same(bits(run(task, out=tmp_path / "run", resume=True)), whole)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_that_is_returned_is_the_one_that_was_evaluated(name):
    task = make_task(model=MODELS[name], batch_size=4)
    result = run(task)
    model, test = result.model(), task.data.test
    assert not model.training
    kind = next(model.parameters()).dtype
    with torch.no_grad():
        outputs = model(test.inputs.to(kind))
    loss = functional.cross_entropy(outputs.float() if kind == torch.bfloat16 else outputs, test.targets)
    assert float(loss) == pytest.approx(result.loss, rel=1e-6)
    assert float((outputs.argmax(1) == test.targets).double().mean()) == pytest.approx(result.accuracy)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"weight_norm"}))
def test_a_saved_model_is_loaded_and_trained_on(name, tmp_path):
    task = make_task(model=MODELS[name], batch_size=4)
    result = run(task)
    result.save(tmp_path / "model.safetensors")
    for initial in (tmp_path / "model.safetensors", result.model(), result.model().state_dict()):
        again = run(task, initial_params=initial, rounds=1)
        assert again.history[0].loss == pytest.approx(result.loss, rel=1e-3)


def test_a_shared_module_is_not_trained():
    net = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    task = make_task(model=lambda: net, batch_size=4)
    first, second = run(task), run(task)
    same(bits(first), bits(second))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert first.history[0].loss == second.history[0].loss
    assert net.weight.grad is None


def test_running_statistics_are_averaged_by_hand():
    """One local step of one batch a client: the server's statistics are the mean over the clients' updated ones."""
    task = make_task(clients=3, model=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    result = fedgbo.run(task, AVG, rounds=1, local_steps=1)
    parts = [task.data.train.inputs[12 * c : 12 * (c + 1)].float() for c in range(3)]
    mean = torch.stack([0.1 * part.mean(0) for part in parts]).mean(0)
    var = torch.stack([0.9 + 0.1 * part.var(0) for part in parts]).mean(0)
    model = result.model()
    assert torch.allclose(model[0].running_mean, mean, atol=1e-6)
    assert torch.allclose(model[0].running_var, var, atol=1e-6)
    assert model[0].num_batches_tracked == 1
    assert result.history[-1].upload_bytes == 3 * 4 * (6 + 8 + 7)  # affine, linear; mean, variance and a count


def test_gradients_with_batch_norm_are_torchs_own():
    task = make_task(clients=1, model=lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    result = fedgbo.run(task, AVG, rounds=5, local_steps=2)
    start = fedgbo.run(task, AVG, rounds=1, initial_params=None, local_steps=2, callbacks=())
    net = start.origin.blueprint.copy().train()
    optimiser, data = torch.optim.SGD(net.parameters(), lr=0.1), task.data.train
    for _ in range(10):
        optimiser.zero_grad()
        functional.cross_entropy(net(data.inputs.float()), data.targets).backward()
        optimiser.step()
    trained = result.model()
    for name, value in net.state_dict().items():
        assert torch.allclose(trained.state_dict()[name].double(), value.double(), atol=1e-5), name


def test_group_norm_replaces_batch_norm_and_leaves_the_original():
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.Sequential(nn.BatchNorm2d(12, affine=False)))
    new = fedgbo.group_norm(net, groups=8)
    assert isinstance(new[1], nn.GroupNorm)
    assert (new[1].num_groups, new[2][0].affine) == (4, False)
    assert isinstance(net[1], nn.BatchNorm2d)
    assert isinstance(fedgbo.group_norm(nn.BatchNorm1d(6)), nn.GroupNorm)


class Drawing(fedgbo.FedAvg):
    """A user's algorithm that draws from torch's process-wide generator."""

    def client_update(self, down, client):
        up = super().client_update(down, client)
        return fedgbo.State(up.params + 0.01 * torch.randn(len(up.params)))


class LateDrawing(fedgbo.FedAvg):
    def client_update(self, down, client):
        if client.id == 2:
            np.random.normal()
        return super().client_update(down, client)


def test_draws_in_client_update_are_reproducible(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    task = make_task(batch_size=4)
    one = run(task, Drawing(fedgbo.SGD(0.1)), workers=1)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    same(bits(run(task, Drawing(fedgbo.SGD(0.1)), workers=2)), bits(one))
    assert torch.equal(torch.get_rng_state(), state)  # a run leaves the user's generators alone


@pytest.mark.parametrize("workers", [1, 2])
def test_draws_by_some_clients_only_are_refused(workers, monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    with pytest.raises(ConfigError, match=r"numpy's process-wide generator.*draw from client.rng"):
        run(make_task(batch_size=4), LateDrawing(fedgbo.SGD(0.1)), workers=workers)


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, self.seen])
        return self.linear(x)


class Late(nn.Module):
    """Writes its buffer only where the weights have moved."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("start", self.linear.weight.detach().clone())
        self.register_buffer("moved", torch.zeros(()))

    def forward(self, x):
        if not torch.equal(self.linear.weight, self.start):
            self.moved += 1
        return self.linear(x)


class Locked(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("a lock")


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (Growing, ConfigError, r"'seen' changes its shape in forward, from \(1,\) to \(2,\)"),
        (Late, ConfigError, "'moved' was changed during training, but not by its first minibatch"),
        ((lambda net: lambda: net)(Locked(3, 2)), ConfigError, "same Locked each time.*a lock.*build a new one"),
        (lambda: "net", ConfigError, "must return an nn.Module, not str"),
        (lambda: nn.Linear(3, 2).requires_grad_(False), ConfigError, "has no parameters to train"),
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(3, 2)), DataError, "the model fails on a batch of inputs"),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double()), DataError, "fails on a batch of inputs"),
    ],
)  # fmt: skip
def test_models_that_are_refused(model, kind, message):
    with pytest.raises(kind, match=message):
        run(make_task(model=model, batch_size=4))


def test_a_model_that_cannot_be_copied_is_built_again(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    task = make_task(model=lambda: Locked(3, 2), batch_size=4)
    one, two = run(task, workers=1), run(task, workers=2)
    same(bits(one), bits(two))
    plain = run(make_task(model=lambda: nn.Linear(3, 2), batch_size=4), engine="plain")
    assert torch.allclose(one.params, plain.params, atol=1e-6)


def test_one_sample_a_batch_with_batch_norm_names_the_reason():
    task = make_task(model=MODELS["batch norm"], batch_size=1)
    with pytest.raises(DataError, match="fails on a minibatch: Expected more than 1 value per channel"):
        run(task)


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (lambda path: {"weight": torch.zeros(2, 3)}, "the given state_dict lacks bias"),
        (lambda path: {**nn.Linear(3, 2).state_dict(), "more": torch.zeros(1)}, "has more, which the model does not"),
        (lambda path: nn.Linear(4, 2), "the given module does not fit the model"),
        (lambda path: path / "none.safetensors", "none.safetensors cannot be read as a safetensors file"),
        (lambda path: 3, "initial_params must be a state_dict, a module, the path of a safetensors file"),
    ],
)
def test_initial_params_that_are_refused(initial, message, tmp_path):
    with pytest.raises(fedgbo.FedGBOError, match=message):
        run(make_task(model=lambda: nn.Linear(3, 2)), initial_params=initial(tmp_path))


def relu():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def fewer_tests(task):
    return replace(task, data=replace(task.data, test=task.data.test.take(np.arange(9))))


def other_loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda task: replace(task, loss=other_loss), "loss and the gradient of the first samples have changed"),
        (lambda task: replace(task, model=relu), "loss and the gradient of the first samples have changed"),
        (lambda task: make_task(seed=1, batch_size=4), "training or test data differ"),
        (fewer_tests, "training or test data differ"),
    ],
)  # fmt: skip
def test_a_resume_with_another_task_is_refused(change, message, tmp_path):
    task = make_task(batch_size=4)
    run(task, out=tmp_path / "run")
    with pytest.raises(fedgbo.RunFolderError, match=message):
        run(change(task), out=tmp_path / "run", resume=True, rounds=6)
    assert run(task, out=tmp_path / "run", resume=True, rounds=6).history[-1].round == 6


def test_targets_that_cross_entropy_leaves_out_are_left_out_everywhere():
    """In C code, too: a label of -100 has no gradient, no loss and no accuracy."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    y[::4] = -100
    data = fedgbo.FederatedData.from_clients(train=[(x[:16], y[:16]), (x[16:32], y[16:32])], test=(x[32:], y[32:]))
    task = fedgbo.Task("ignored", data, lambda: nn.Linear(3, 2), batch_size=8)
    fast, plain = run(task), run(task, engine="plain")
    assert torch.allclose(fast.params, plain.params, atol=1e-6)
    kept = y[32:] >= 0
    with torch.no_grad():
        outputs = fast.model()(torch.from_numpy(x[32:][kept]).float())
    expected = float(functional.cross_entropy(outputs, torch.from_numpy(y[32:][kept])))
    assert fast.loss == pytest.approx(expected, rel=1e-6)
    assert fast.accuracy == pytest.approx(float((outputs.argmax(1).numpy() == y[32:][kept]).mean()))
