"""A whole network in one C call against torch's autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.objective import MaxEntropy
from fedgbo.core.optimiser import AffineStep
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers.stack import runner_for
from fedgbo.models.cnn import paper_cnn
from fedgbo.native import library, step_in_place
from tests.engines.layers.compare import relative

native = library()
pytestmark = pytest.mark.skipif(native is None, reason="no C compiler: there is no such call")
WIDE = 2 * native.fedgbo_lanes() if native is not None else 32


def small(*between):
    """Two convolutions, the first followed by `between`."""
    return nn.Sequential(nn.Conv2d(2, WIDE, 3), *between, nn.Conv2d(WIDE, 2 * WIDE, (2, 3)), nn.ReLU(), nn.Flatten())


NETWORKS = {
    "CIFAR100": (lambda: paper_cnn(channels=3, size=32, classes=100), (3, 32, 32), 100),
    "FEMNIST": (lambda: paper_cnn(channels=1, size=28, classes=62), (1, 28, 28), 62),
    "no pooling": (lambda: nn.Sequential(*small(nn.ReLU()), nn.Linear(2 * WIDE * 5 * 4, 3)), (2, 8, 8), 3),
    "no ReLU": (lambda: nn.Sequential(*small(), nn.Linear(2 * WIDE * 5 * 4, 7)), (2, 8, 8), 7),
    "pool, then ReLU": (
        lambda: nn.Sequential(*small(nn.MaxPool2d(2), nn.ReLU()), nn.Linear(2 * WIDE * 3 * 2, 5)),
        (2, 10, 11),
        5,
    ),
    "no convolution": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(2 * WIDE, 9), nn.ReLU(), nn.Linear(9, 2)),
        (2, 1, WIDE),
        2,
    ),
}


def case(name, batch):
    build, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    module = build()
    inputs, targets = torch.randn(batch, *shape), torch.randint(classes, (batch,))
    return module, inputs, targets


@pytest.mark.parametrize("batch", [1, 5, 32])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "no convolution"])
def test_equals_autograd(name, batch):
    module, inputs, targets = case(name, batch)
    slow, fast = FlatModel(module, functional.cross_entropy), FlatModel(module, functional.cross_entropy)
    fast.specialise(inputs, ())
    assert fast._runner is not None
    params = fast.params.clone()
    expected, expected_loss = slow.gradient(params, (inputs, targets))
    grad, loss = fast.gradient(params, (inputs, targets))
    assert abs(float(loss - expected_loss)) <= 1e-5 * float(expected_loss)
    begin = 0
    for p in module.parameters():
        part = slice(begin, begin + p.numel())
        assert relative(grad[part], expected[part]) < 1e-5
        begin += p.numel()


def test_without_convolutions_the_features_must_fill_whole_vectors():
    module, inputs, _ = case("no convolution", 4)
    assert runner_for(module, inputs) is None  # 9 inputs of the second layer


@pytest.mark.parametrize(
    "optimiser", [fedgbo.SGD(0.1), fedgbo.SGDm(0.1, 0.9), fedgbo.RMSProp(0.1, 0.9), fedgbo.Adam(0.1, 0.9)]
)
def test_a_step_at_once_has_the_bits_of_gradient_and_step(optimiser):
    module, inputs, targets = case("FEMNIST", 8)
    model = FlatModel(module, functional.cross_entropy)
    model.specialise(inputs, ())
    start = model.params.clone()
    stats = {name: torch.rand_like(start) for name in optimiser.init(start)}
    step = optimiser.fixed(stats).like(start)
    grad, loss = model.gradient(start, (inputs, targets))
    expected = start.clone()
    step_in_place(step, expected, grad)
    model.params.copy_(start)
    assert torch.equal(model.step((inputs, targets), (), step), loss)
    assert torch.equal(model.params, expected)
    slow = optimiser.update(start.double(), {k: v.double() for k, v in stats.items()}, grad.double())
    assert relative(expected.double() - start, slow - start) < 1e-5


def test_nan_is_not_hidden():
    module, inputs, targets = case("pool, then ReLU", 3)
    model = FlatModel(module, functional.cross_entropy)
    model.specialise(inputs, ())
    inputs[1, 0, 4, 4] = torch.nan
    grad, loss = model.gradient(model.params.clone(), (inputs, targets))
    assert torch.isnan(loss)
    assert torch.isnan(grad).any()


@pytest.mark.parametrize("label", [-1, 62, 2**40])
def test_a_label_that_is_no_output_is_an_error_and_not_a_write_somewhere(label):
    module, inputs, targets = case("FEMNIST", 4)
    model = FlatModel(module, functional.cross_entropy)
    model.specialise(inputs, ())
    targets[2] = label
    with pytest.raises(fedgbo.DataError, match=r"0 \.\.\. 61"):
        model.backward((inputs, targets))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: nn.Sequential(*m, nn.ReLU()),
        lambda m: nn.Sequential(*list(m)[:-1]),
        lambda m: nn.Sequential(nn.Conv2d(1, WIDE, 3, padding=1), *list(m)[1:]),
        lambda m: nn.Sequential(nn.Conv2d(1, WIDE, 3, bias=False), *list(m)[1:]),
        lambda m: nn.Sequential(*list(m)[:2], nn.MaxPool2d(3), *list(m)[3:]),
        lambda m: m.double(),
        lambda m: m.requires_grad_(False),
        lambda m: nn.Sequential(*list(m)[:1], nn.Dropout(0.5), *list(m)[1:]),
    ],
)
def test_what_it_does_not_know_it_leaves_to_torch(change):
    module, inputs, _ = case("FEMNIST", 2)
    assert runner_for(module, inputs) is not None
    assert runner_for(change(module), inputs) is None


def test_hooks_another_loss_and_terms_on_the_hidden_layer_leave_it_to_torch():
    module, inputs, _ = case("FEMNIST", 2)
    for loss, terms in ((functional.mse_loss, ()), (functional.cross_entropy, (MaxEntropy(1.0),))):
        model = FlatModel(module, loss)
        model.specialise(inputs, terms)
        assert model._runner is None
    module[0].register_forward_hook(lambda *_: None)
    assert runner_for(module, inputs) is None


def test_evaluation_after_training_sees_the_parameters_it_is_given():
    module, inputs, targets = case("FEMNIST", 4)
    model = FlatModel(module, functional.cross_entropy)
    model.specialise(inputs, ())
    start = model.params.clone()
    expected = model.outputs(start, inputs)
    model.step((inputs, targets), (), AffineStep(0.0, 0.5))
    trained = model.release()
    assert not torch.equal(trained, start)
    assert torch.equal(model.outputs(start, inputs), expected)
    assert not torch.equal(model.outputs(trained, inputs), expected)
