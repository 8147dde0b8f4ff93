"""Networks with a `forward` of their own: read as stacks where they are, and left to torch where they are not."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines import select
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers import LEVELS, STOCK
from fedgbo.engines.layers.network import network_for
from fedgbo.engines.one_call import OneCall
from fedgbo.engines.select import engine_for
from fedgbo.native import library
from tests.conftest import make_task
from tests.engines.layers.compare import TOLERANCE, relative

pytestmark = pytest.mark.skipif(library() is None, reason="no C code: there is no such call")


class Net(nn.Module):
    """A network as tutorials write it."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 9, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.drop = nn.Dropout2d(0.25)
        self.fc1 = nn.Linear(9 * 2 * 2, 20)
        self.fc2 = nn.Linear(20, 3)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = functional.max_pool2d(torch.relu(self.drop(self.conv2(x))), 2)
        x = x.view(x.size(0), -1)
        x = functional.dropout(self.fc1(x).tanh(), 0.5, self.training)
        return self.fc2(x)


class Blocks(nn.Module):
    """Modules of the user's own within each other; one activation and one pooling that are used again."""

    def __init__(self):
        super().__init__()
        self.act, self.pool = nn.GELU(), nn.AvgPool2d(2)
        self.first, self.second = Block(1, 4, self.act), Block(4, 5, self.act)
        self.head = nn.Sequential(nn.Linear(5 * 3 * 3, 8), nn.SiLU(), nn.Linear(8, 3))

    def forward(self, x):
        batch = x.shape[0]
        x = self.pool(self.second(self.pool(self.first(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 3).reshape(batch, -1))


class Block(nn.Module):
    def __init__(self, channels, out, act):
        super().__init__()
        self.conv, self.act = nn.Conv2d(channels, out, 3, padding=1), act

    def forward(self, x):
        return self.act(self.conv(x))


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(144, 9), nn.Linear(9, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = functional.gelu(self.a(torch.flatten(x, 1)))
        x = torch.sigmoid(self.b(functional.dropout(x, p=0.1, training=self.training)))
        return self.c(functional.silu(x.tanh().relu()).flatten(1).view(-1, 8))


def build(kind, dtype=torch.float32):
    torch.manual_seed(0)
    return kind().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [Net, Blocks, Functions])
def test_gradients_are_those_of_torch(kind, dtype):
    stock = build(kind, dtype)
    inputs, targets = torch.randn(7, 1, 12, 12, dtype=dtype), torch.randint(3, (7,))
    fast, slow = (FlatModel(copy.deepcopy(stock), functional.cross_entropy, level) for level in (LEVELS[0], STOCK))
    fast.specialise(inputs, ())
    assert fast.network is not None
    torch.manual_seed(1)
    grad, loss = fast.gradient(slow.params, (inputs, targets))
    torch.manual_seed(1)
    expected, other = slow.gradient(slow.params.clone(), (inputs, targets))
    assert relative(grad, expected) < TOLERANCE[dtype]
    assert float(loss) == pytest.approx(float(other), rel=TOLERANCE[dtype])


def test_whole_runs_are_those_of_the_textbook():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(functional.relu(self.a(x)))

    task, algorithm = make_task(batch_size=4, model=Small), fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9))
    assert isinstance(engine_for(task, algorithm, 0).descent, OneCall)
    ours, textbook = (fedgbo.run(task, algorithm, rounds=3, engine=engine) for engine in ("auto", "plain"))
    assert torch.allclose(ours.params, textbook.params, rtol=1e-4, atol=1e-6)
    assert set(ours.model().state_dict()) == {"a.weight", "a.bias", "b.weight", "b.bias"}


class Linears(nn.Module):
    """Base class of networks that are no stacks, or that cannot be told to be ones."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.calls, self.seen = 0, []

    def forward(self, x):
        return self.b(self.between(self.a(x)))


class Shortcut(Linears):
    def between(self, x):
        return x + functional.relu(x)


class Scaled(Linears):
    def between(self, x):
        return 2 * x


class Counting(Linears):
    def between(self, x):
        self.calls += 1
        return functional.relu(x) if self.calls > 3 else x


class Keeping(Linears):
    def between(self, x):
        self.seen.append(1)
        return x


class Choosing(Linears):
    def between(self, x):
        return functional.relu(x) if random.random() < 0.5 else x


class ChoosingByNumpy(Linears):
    def between(self, x):
        return functional.relu(x) if np.random.random() < 0.5 else x


class ChoosingByItsOwn(Linears):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def between(self, x):
        return functional.relu(x) if self.rng.random() < 0.5 else x


class ByValue(Linears):
    def between(self, x):
        return functional.relu(x) if x.mean() > 0 else x


class Frozen(Linears):
    def forward(self, x):
        with torch.no_grad():
            x = functional.relu(self.a(x))
        return self.b(x)


class Detached(Linears):
    def between(self, x):
        return x.detach()


class Reversed(nn.Module):
    """Its parameters have another order than its layers."""

    def __init__(self):
        super().__init__()
        self.b, self.a = nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x):
        return self.b(self.a(x))


class Twice(Linears):
    def between(self, x):
        return self.a(x)


class Unused(Linears):
    def forward(self, x):
        return self.a(x)


class Buffered(Linears):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def between(self, x):
        self.count += 1
        return x


class AlwaysDropping(Linears):
    def between(self, x):
        return functional.dropout(x, 0.5, training=False)


class Several(Linears):
    def forward(self, x):
        return (self.b(self.a(x)),)


NO_STACKS = [
    Shortcut, Scaled, Counting, Keeping, Choosing, ChoosingByNumpy, ChoosingByItsOwn, ByValue, Frozen, Detached,
    Reversed, Twice, Unused, Buffered, AlwaysDropping, Several,
]  # fmt: skip


@pytest.mark.parametrize("kind", NO_STACKS)
def test_other_networks_are_left_to_torch(kind):
    for seed in range(8):  # a choice at random must never be taken for the rule
        random.seed(seed)
        np.random.seed(seed)
        assert network_for(build(kind), torch.randn(4, 6), functional.cross_entropy) is None


def test_the_base_class_is_a_stack():
    class Plain(Linears):
        def between(self, x):
            assert type(x) is torch.Tensor
            return functional.relu(x)

    assert network_for(build(Plain), torch.randn(4, 6), functional.cross_entropy) is not None


def test_features_that_are_flattened_again():
    stock = nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3))
    model, inputs, targets = FlatModel(stock, functional.cross_entropy), torch.randn(4, 6), torch.randint(3, (4,))
    expected, _ = model.gradient(model.params.clone(), (inputs, targets))
    model.specialise(inputs, ())
    assert model.network is not None
    assert relative(model.gradient(model.params.clone(), (inputs, targets))[0], expected) < 1e-5


def test_reading_leaves_the_module_as_it_was():
    for kind in (Counting, Keeping, Buffered):
        module = build(kind)
        assert network_for(module, torch.randn(4, 6), functional.cross_entropy) is None
        assert (module.calls, module.seen) == (0, [])
        assert all(float(buffer) == 0 for buffer in module.buffers())
    random.seed(3)
    state = random.getstate()
    network_for(build(Choosing), torch.randn(4, 6), functional.cross_entropy)
    assert random.getstate() == state


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.3, 0.3)


class Clipped(Linears):
    def between(self, x):
        return functional.relu(Clip.apply(x))


class Hooked(Linears):
    def between(self, x):
        if x.requires_grad:
            x.register_hook(lambda grad: grad.clamp(-0.3, 0.3))
        return x


class Clamped(Linears):
    def forward(self, x):
        for p in self.parameters():
            p.data.clamp_(-1, 1)
        return self.b(self.a(x))


class Private(Linears):
    def __init__(self):
        super().__init__()
        self._calls = 0

    def between(self, x):
        self._calls += 1
        return functional.relu(x) if self._calls > 8 else x


class PrivateChoice(Linears):
    def __init__(self):
        super().__init__()
        self._rng = np.random.default_rng(0)

    def between(self, x):
        return functional.relu(x) if self._rng.random() < 0.1 else x


class Autocast(Linears):
    def between(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return functional.relu(x)


@pytest.mark.parametrize("kind", [Clipped, Hooked, Clamped, Private, PrivateChoice, Autocast])
def test_what_is_done_besides_layers_is_left_to_torch(kind):
    assert network_for(build(kind), torch.randn(4, 6), functional.cross_entropy) is None


def test_other_attributes_than_those_of_the_layers_do_not_matter():
    """As after structured pruning, and a bias that torch broadcasts."""
    pruned = nn.Sequential(nn.Linear(6, 400_000), nn.ReLU(), nn.Linear(400_000, 3))
    pruned[0].weight, pruned[0].bias = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.zeros(8))
    pruned[2].weight = nn.Parameter(torch.randn(3, 8))
    network = network_for(pruned, torch.randn(4, 6), functional.cross_entropy)
    assert [layer.outputs for layer in network.plan.layers] == [8, 8, 3]
    broadcast = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    broadcast[0].bias = nn.Parameter(torch.zeros(1))
    assert network_for(broadcast, torch.randn(4, 6), functional.cross_entropy) is None


def test_lists_as_sizes_and_no_gradients_around():
    class Lists(Functions):
        def forward(self, x):
            return super().forward(functional.adaptive_avg_pool2d(functional.max_pool2d(x, [2, 2]), [12, 12]))

    with torch.no_grad():
        assert network_for(build(Lists), torch.randn(2, 1, 24, 24), functional.cross_entropy) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_pooling_whose_last_pixels_are_in_no_window(dtype):
    """Their gradients are 0, whatever was in memory before."""
    stock = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(3, padding=1), nn.Tanh(), nn.Conv2d(4, 6, 3), nn.Flatten()),
        nn.Linear(24, 3),
    ).to(dtype)
    inputs, targets = torch.randn(8, 1, 12, 12, dtype=dtype), torch.randint(3, (8,))
    fast, slow = (FlatModel(copy.deepcopy(stock), functional.cross_entropy, level) for level in (LEVELS[0], STOCK))
    fast.specialise(inputs, ())
    assert fast.network is not None
    for _ in range(3):
        grad, _ = fast.gradient(slow.params.clone(), (inputs, targets))
        assert relative(grad, slow.gradient(slow.params.clone(), (inputs, targets))[0]) < TOLERANCE[dtype]


def test_a_model_that_is_returned_in_eval_mode_is_trained_by_all_workers(monkeypatch):
    monkeypatch.setattr(select, "WORTH_THREADS", 0)
    for middle in (nn.ReLU(), nn.Softplus(), nn.BatchNorm1d(8)):
        model = lambda m=middle: nn.Sequential(nn.Linear(3, 8), m, nn.Dropout(0.5), nn.Linear(8, 2)).eval()  # noqa: E731
        task, algorithm = make_task(clients=5, batch_size=4, model=model), fedgbo.FedAvg(fedgbo.SGD(0.1))
        one, two, textbook = (
            fedgbo.run(task, algorithm, rounds=3, workers=workers, engine=engine).params
            for workers, engine in ((1, "auto"), (2, "auto"), (1, "plain"))
        )
        assert torch.equal(one, two)
        assert torch.allclose(one, textbook, rtol=1e-4, atol=1e-5)


def test_a_train_of_its_own_need_not_return_the_module():
    class Model(Linears):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()

        def between(self, x):
            return self.norm(x)

    task, algorithm = make_task(features=6, classes=3, model=Model), fedgbo.FedAvg(fedgbo.SGD(0.1))
    ours, textbook = (fedgbo.run(task, algorithm, rounds=2, engine=engine) for engine in ("auto", "plain"))
    assert torch.allclose(ours.params, textbook.params, rtol=1e-4, atol=1e-5)
    assert isinstance(ours.model(), Model)
    assert ours.history[-1].counted_flops > 0
