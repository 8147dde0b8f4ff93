import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.engines import layers
from fedgbo.engines.fit import fastest
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers import accelerate, replaced
from fedgbo.engines.layers.conv import FastConv2d
from fedgbo.engines.layers.recurrent import FastGRU
from fedgbo.models.paper import digits_cnn
from tests.engines.layers.compare import assert_same_bits, assert_same_function


def paper_cnn(channels, size, classes):
    left = ((size - 2) // 2 - 2) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * left * left, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


class PaperGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(79, 8)
        self.gru = nn.GRU(8, 128, num_layers=2, batch_first=True)
        self.output = nn.Linear(128, 79)

    def forward(self, x):
        return self.output(self.gru(self.embedding(x))[0][:, -1])


class Unusual(nn.Module):
    """Its own forward, layers that are not known, one used twice, and one that is absent."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.again = nn.Conv2d(6, 6, 3, padding=1)
        self.missing = None
        self.pool = nn.MaxPool2d(2)
        self.tail = nn.ModuleDict({"act": nn.GELU(), "out": nn.Linear(6, 3)})
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = self.pool(self.again(self.again(x)))
        return self.tail["out"](self.tail["act"](self.pool(x)).mean((2, 3))) + self.shift


CASES = {
    "CIFAR100": (lambda: paper_cnn(3, 32, 100), lambda b, kind: torch.randn(b, 3, 32, 32, dtype=kind)),
    "FEMNIST": (lambda: paper_cnn(1, 28, 62), lambda b, kind: torch.randn(b, 1, 28, 28, dtype=kind)),
    "Shakespeare": (PaperGRU, lambda b, kind: torch.randint(79, (b, 80))),
    "digits": (digits_cnn, lambda b, kind: torch.randn(b, 1, 8, 8, dtype=kind)),
    "unusual": (Unusual, lambda b, kind: torch.randn(b, 2, 9, 11, dtype=kind)),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 32])
def test_computes_the_same(case, kind, batch):
    build, inputs = CASES[case]
    stock = build().to(kind)
    assert_same_function(accelerate(stock), stock, inputs(batch, kind))


@pytest.mark.parametrize("case", CASES)
def test_keeps_parameters_names_and_the_original(case):
    stock = CASES[case][0]()
    before, modules = dict(stock.named_parameters()), list(stock.modules())
    fast = accelerate(stock)
    assert fast is not stock
    assert list(stock.modules()) == modules
    after = dict(fast.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert list(fast.state_dict()) == list(stock.state_dict())


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("case", CASES)
def test_same_bits_twice(case):
    build, inputs = CASES[case]
    assert_same_bits(accelerate(build()), inputs(32, torch.float32))


def test_replaces_the_paper_s_layers(monkeypatch):
    monkeypatch.setattr(layers, "slow_mkl", lambda: False)
    fast = accelerate(paper_cnn(3, 32, 100))
    kinds = [type(layer) for layer in fast]
    block = [FastConv2d, nn.Identity, nn.Identity]  # the convolution pools, and does the ReLU
    assert kinds == [*block, *block, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert type(accelerate(PaperGRU()).gru) is FastGRU


def test_a_layer_used_twice_stays_one():
    fast = accelerate(nn.Sequential(*[nn.Conv2d(2, 2, 1)] * 2))
    assert fast[0] is fast[1]


def test_a_pool_used_twice_is_joined_only_beside_the_relu():
    pool = nn.MaxPool2d(2)
    stock = nn.Sequential(nn.Conv2d(1, 4, 3), pool, nn.ReLU(), nn.Conv2d(4, 4, 3), pool)
    assert_same_function(accelerate(stock), stock, torch.randn(2, 1, 14, 14))


def test_subclasses_and_hooks_stay():
    class Mine(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    seen = []
    hooked, relu = nn.Conv2d(1, 4, 3), nn.ReLU()
    hooked.register_forward_hook(lambda *args: seen.append("conv"))
    relu.register_forward_pre_hook(lambda *args: seen.append("relu"))
    stock = nn.Sequential(Mine(1, 1, 3), hooked, relu, nn.MaxPool2d(2))
    fast = accelerate(stock)
    assert [a is b for a, b in zip(fast, stock, strict=True)] == [True, True, True, False]
    x = torch.randn(2, 1, 9, 9)
    assert torch.equal(fast(x), stock(x))
    assert seen == ["conv", "relu"] * 2


def test_nothing_to_do_returns_the_module():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    assert accelerate(module) is module


def test_training_mode_is_the_accelerated_module_s():
    fast = accelerate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5)))
    fast.eval()
    x = torch.randn(1, 1, 4, 4)
    assert torch.equal(fast(x), fast(x))


@pytest.mark.parametrize("case", ["CIFAR100", "Shakespeare"])
def test_inside_a_flat_model(case):
    build, inputs = CASES[case]
    stock = build()
    fast = accelerate(copy.deepcopy(stock))
    x, y = inputs(4, torch.float32), torch.randint(62, (4,))
    slow_model = FlatModel(stock, functional.cross_entropy)
    fast_model = FlatModel(fast, functional.cross_entropy)
    params = slow_model.params + 0.01
    (ours, _), (theirs, _) = fast_model.gradient(params, (x, y)), slow_model.gradient(params, (x, y))
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


class Viewing(nn.Module):
    """`view` fails on channels-last images of more than one pixel."""

    def __init__(self, flatten=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.pool, self.gru = nn.MaxPool2d(2), nn.GRU(8, 4, batch_first=True)
        self.drop, self.out, self.flatten = nn.Dropout().eval(), nn.Linear(64, 3), flatten

    def forward(self, x):
        x = self.pool(functional.relu(self.norm(self.conv(x))))
        x = x.flatten(1) if self.flatten else x.view(x.size(0), -1)
        return self.out(self.gru(x.view(len(x), -1, 8))[0].flatten(1))


def level_of(module, inputs, targets=3):
    """The level that an engine would take for copies of a module, and the names of the layers replaced there."""
    task = fedgbo.Task(
        "t", fedgbo.FederatedData.from_clients(train=[(inputs, torch.arange(len(inputs)) % targets)]), module
    )
    level = fastest(lambda: copy.deepcopy(module), task, (inputs, torch.arange(len(inputs)) % targets), ())
    return level, replaced(accelerate(module, level.layers))


def test_convolutions_stay_where_images_are_viewed():
    few, many = torch.randn(2, 1, 8, 8), torch.randn(50, 1, 8, 8)  # of which only the second is made channels-last
    stock = Viewing()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        accelerate(stock)(many)
    level, names = level_of(stock, few)
    assert names == ["GRU"]
    assert_same_function(accelerate(stock, level.layers), stock, many)
    assert level_of(Viewing(flatten=True), few)[1] == ["Conv2d", "GRU", "MaxPool2d"]


def test_a_model_that_views_its_images_is_trained():
    random = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(40, 1, 8, 8, generator=random), torch.randint(3, (40,), generator=random)) for _ in range(4)]
    data = fedgbo.FederatedData.from_clients(train=pairs[:3], test=pairs[3])
    task = fedgbo.Task("views", data, Viewing, clients_per_round=2, batch_size=20)
    algorithm = fedgbo.FedGBO(fedgbo.SGDm(0.1, 0.9))
    ours, textbook = (fedgbo.run(task, algorithm, rounds=2, local_steps=3, engine=how) for how in ("auto", "plain"))
    assert torch.allclose(ours.params, textbook.params, rtol=1e-4, atol=1e-5)


class Counts(nn.Module):
    """Uses a buffer that every forward pass changes."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.out(functional.softplus(self.conv(x)).flatten(1)) / self.calls


def test_the_trial_leaves_the_module_as_it_was():
    module = Counts()
    assert level_of(module, torch.randn(2, 3, 8, 8))[1] == ["Conv2d"]
    assert float(module.calls) == 0


@pytest.mark.parametrize(
    "between",
    [
        lambda x, training: functional.dropout(x, 0.5, training).flatten(1),  # draws in the order of memory
        lambda x, training: x.view(len(x), -1) if training else x.flatten(1),
        lambda x, training: x.as_strided((len(x), 144), (144, 1)),
    ],
)
@pytest.mark.parametrize("zero", [False, True])
def test_convolutions_stay_where_channels_last_images_change_the_training(between, zero):
    class Model(Counts):
        def forward(self, x):
            return self.out(between(functional.softplus(self.conv(x)), self.training))

    model = Model()
    if zero:
        nn.init.zeros_(model.out.weight)  # then the first outputs do not show what is wrong
    assert level_of(model, torch.randn(2, 3, 8, 8))[1] == []


class Sliced(nn.Module):
    """Takes the features between layers that are joined."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.out, self.gate = nn.Linear(40, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        features = self.layers[:2](x)
        return self.out(torch.cat([self.layers[2](features).flatten(1), self.gate * features.mean((2, 3))], 1))


class Told(nn.Module):
    """Tells layers apart by type."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[0] if type(layer) is nn.GRU else layer(x) if type(layer) is nn.Linear else x
        return x[:, -1]


class Remembering(nn.Module):
    """Keeps methods in a list: they belong to the module that was copied."""

    def __init__(self):
        super().__init__()
        self.gru, self.out, self.mean = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3), None
        self.stages = [self.first, self.second]

    def first(self, x):
        self.mean = x.mean(1)
        return self.gru(x)[0]

    def second(self, x):
        return x[:, -1]

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.out(x if self.mean is None else x + self.mean)


class Penalised(nn.Module):
    """Differentiates twice, which the GRU of ours cannot."""

    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        with torch.enable_grad():
            x = x.requires_grad_()
            scores = self.out(self.gru(x)[0][:, -1])
            (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return scores + slope.square().sum()


@pytest.mark.parametrize(
    ("build", "shape"), [(Sliced, (3, 8, 8)), (Told, (5, 8)), (Remembering, (5, 8)), (Penalised, (5, 8))]
)
def test_models_that_see_more_of_a_layer_than_its_outputs_keep_it(build, shape):
    assert level_of(build(), torch.randn(6, *shape))[1] == []


class Normed(nn.Module):
    def __init__(self, norm, detached):
        super().__init__()
        self.conv, self.pool, self.norm, self.detached = nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), norm, detached
        self.conv.requires_grad_(detached)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        images = self.pool(self.conv(x))
        return self.scale * self.norm(images.detach() if self.detached else images)


class OwnNorm(nn.GroupNorm):
    pass


NORMS = [nn.GroupNorm(2, 4), OwnNorm(2, 4), lambda x: functional.group_norm(x, 2, torch.ones(4, requires_grad=True))]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("detached", [False, True])
def test_images_without_gradients_before_a_group_norm_stay(norm, detached):
    """torch's backward pass of it ends the process where they are channels-last."""
    assert level_of(Normed(norm, detached), torch.randn(6, 3, 8, 8))[1] == []


def test_images_with_gradients_before_a_group_norm_are_channels_last():
    stock = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    assert level_of(stock, torch.randn(6, 3, 8, 8))[1] == ["Conv2d"]


class Reads(nn.Module):
    """Adds a little of the weights of layers of one type to its outputs in training."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(144, 3)

    def forward(self, x):
        scores = self.out(self.conv(x).flatten(1))
        decay = sum(layer.weight.square().sum() for layer in self.modules() if type(layer) is nn.Conv2d)
        return scores * (1 + 5e-4 * decay) if self.training else scores


class Rooted(nn.Module):
    """Is not a number at some parameters."""

    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), nn.Linear(40, 3)
        self.scale = nn.Parameter(torch.full((40,), 0.01).index_fill(0, torch.tensor([0]), 1.0))

    def forward(self, x):
        features = self.layers[:2](x)
        both = torch.cat([self.layers[2](features).flatten(1), features.mean((2, 3))], 1)
        return self.out(both * self.scale.sqrt())


class Masked(Sliced):
    """Has outputs that stand for infinity, beside which all others are small."""

    def forward(self, x):
        return super().forward(x).masked_fill(torch.arange(3) == 2, -1e9)


class Expensive(Sliced):
    """Has a loss that is large beside its gradient."""

    def forward(self, x):
        return super().forward(x) + torch.tensor([1e6, 0.0, 0.0])


@pytest.mark.parametrize("build", [Masked, Expensive])
def test_large_outputs_and_losses_hide_nothing(build):
    assert level_of(build(), torch.randn(6, 3, 8, 8), targets=2)[1] == []


@pytest.mark.parametrize("build", [Reads, Rooted])
def test_small_differences_and_numbers_that_are_none_are_seen(build):
    assert level_of(build(), torch.randn(6, 3, 8, 8))[1] == []
