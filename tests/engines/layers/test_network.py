"""A whole network in one C call against torch's autograd."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgbo
from fedgbo.core.objective import MaxEntropy, Proximal, Term
from fedgbo.core.optimiser import AffineStep
from fedgbo.engines.flat import FlatModel
from fedgbo.engines.layers import LEVELS, STOCK
from fedgbo.engines.layers.network import network_for
from fedgbo.models.paper import digits_cnn, paper_cnn
from fedgbo.native import library, step_in_place
from tests.engines.layers.compare import TOLERANCE, relative

pytestmark = pytest.mark.skipif(library() is None, reason="no C code: there is no such call")


def ends(*layers, features, classes):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes))


NETWORKS = {
    "CIFAR100": (lambda: paper_cnn(channels=3, size=32, classes=100), (3, 32, 32), 100),
    "FEMNIST": (lambda: paper_cnn(channels=1, size=28, classes=62), (1, 28, 28), 62),
    "digits": (digits_cnn, (1, 8, 8), 10),
    "McMahan": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)),
        ),
        (1, 28, 28),
        10,
    ),
    "logistic regression": (lambda: nn.Linear(60, 10), (60,), 10),
    "MLP": (lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (784,), 10),
    "odd MLP": (
        lambda: nn.Sequential(
            *(nn.Flatten(), nn.Linear(21, 9, bias=False), nn.Tanh(), nn.Linear(9, 1), nn.Sigmoid(), nn.Linear(1, 3)),
        ),
        (3, 7),
        3,
    ),
    "stride 2": (
        lambda: ends(
            *(nn.Conv2d(3, 20, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(20, 7, 4, stride=3, padding=2), nn.GELU()),
            *(nn.Conv2d(7, 5, (1, 3), stride=(1, 2), padding=(0, 1)), nn.SiLU()),
            features=5 * 5 * 2,
            classes=4,
        ),
        (3, 24, 18),
        4,
    ),
    "kernel smaller than stride": (
        lambda: ends(nn.Conv2d(2, 6, 3), nn.Tanh(), nn.Conv2d(6, 3, 2, stride=3), features=3 * 3 * 3, classes=2),
        (2, 10, 11),
        2,
    ),
    "other pooling": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 9, 5, padding=(1, 3)), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(9, 12, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2, padding=1)),
            *(nn.Conv2d(12, 16, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        ),
        (1, 15, 14),
        5,
    ),
    "pooling first, nested, ends with an activation": (
        lambda: nn.Sequential(
            nn.Sequential(nn.AvgPool2d(2), nn.Tanh(), nn.Identity()),
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(nn.Linear(3 * 2 * 3, 6), nn.Tanh()),
        ),
        (2, 13, 17),
        6,
    ),
    "no linear layer": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 11, 3), nn.ReLU(), nn.Conv2d(11, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        (2, 6, 6),
        4,
    ),
}


def case(name, batch, kind=torch.float32, loss=functional.cross_entropy):
    build, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    module = build().to(kind)
    inputs, targets = torch.randn(batch, *shape, dtype=kind), torch.randint(classes, (batch,))
    return module, inputs, torch.randn(batch, classes, dtype=kind) if loss is functional.mse_loss else targets


@pytest.mark.parametrize("batch", [1, 5, 32])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [functional.cross_entropy, functional.mse_loss])
def test_equals_autograd(name, batch, kind, loss):
    module, inputs, targets = case(name, batch, kind, loss)
    slow, fast = FlatModel(copy.deepcopy(module), loss, STOCK), FlatModel(module, loss)
    fast.specialise(inputs, ())
    assert fast.network is not None
    params = fast.params.clone()
    expected, expected_loss = slow.gradient(params, (inputs, targets))
    grad, found = fast.gradient(params, (inputs, targets))
    assert abs(float(found - expected_loss)) <= TOLERANCE[kind] * float(expected_loss)
    begin = 0
    for key, p in module.named_parameters():
        part = slice(begin, begin + p.numel())
        assert relative(grad[part], expected[part]) < TOLERANCE[kind], key
        begin += p.numel()


def ready(name, batch, loss=functional.cross_entropy):
    """Return a model that uses the C code, with a batch."""
    module, inputs, targets = case(name, batch, loss=loss)
    model = FlatModel(module, loss)
    model.specialise(inputs, ())
    assert model.network is not None
    return model, inputs, targets


@pytest.mark.parametrize(
    "optimiser", [fedgbo.SGD(0.1), fedgbo.SGDm(0.1, 0.9), fedgbo.RMSProp(0.1, 0.9), fedgbo.Adam(0.1, 0.9)]
)
@pytest.mark.parametrize("name", ["FEMNIST", "odd MLP", "stride 2"])
def test_a_step_at_once_has_the_bits_of_gradient_and_step(name, optimiser):
    model, inputs, targets = ready(name, 8)
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


@pytest.mark.parametrize("name", ["digits", "odd MLP", "stride 2", "other pooling"])
@pytest.mark.parametrize(("mu", "beta"), [(0.0, 0.0), (0.3, 0.0), (0.2, 3.0)])
def test_many_steps_are_the_loop_over_rows_of_the_data(name, mu, beta):
    """Three batches of four rows in any order, a step after each, with FedProx's pull and FedMAX's term."""
    model, inputs, targets = ready(name, 9)
    start, rows = model.params.clone(), torch.tensor([8, 0, 3, 3, 1, 2, 5, 8, 7, 6, 4, 0])
    step, origin = AffineStep(0.01 * torch.rand_like(start), 0.1 + torch.rand_like(start)), start + 0.1
    slow, expected, losses = (
        FlatModel(copy.deepcopy(model.original), functional.cross_entropy, STOCK),
        start.clone(),
        [],
    )
    terms = (Proximal(mu), MaxEntropy(beta))
    slow.specialise(inputs, terms)
    for part in rows.view(3, 4):
        grad, loss = slow.gradient(expected, (inputs[part], targets[part]), terms)
        expected = step(expected, grad + mu * (expected - origin))
        losses.append(float(loss))
    y = start.clone()
    found = model.network.descend(y, (inputs, targets, rows.numpy()), 3, step, terms, origin)
    assert found == pytest.approx(losses, rel=1e-5)
    assert relative(y - start, expected - start) < 1e-5


DROPPING = {
    "features": (
        lambda: nn.Sequential(
            *(nn.Dropout(0.2), nn.Linear(21, 13), nn.ReLU(), nn.Dropout(0.5), nn.Linear(13, 5), nn.Dropout(0.1)),
        ),
        (21,),
        5,
    ),
    "images": (
        lambda: nn.Sequential(
            *(nn.Dropout(0.2), nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3), nn.MaxPool2d(2)),
            *(nn.Dropout(0.4), nn.Conv2d(5, 9, 3), nn.Tanh(), nn.Dropout2d(0.1), nn.Flatten(), nn.Dropout(0.25)),
            *(nn.Linear(9 * 4 * 3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)),
        ),
        (3, 12, 10),
        4,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_draws_what_torch_draws(name, dtype):
    build, shape, classes = DROPPING[name]
    stock = build().to(dtype)
    inputs, targets = torch.randn(12, *shape, dtype=dtype), torch.randint(classes, (12,))
    fast, slow = (FlatModel(copy.deepcopy(stock), functional.cross_entropy, level) for level in (LEVELS[0], STOCK))
    fast.specialise(inputs, ())
    assert fast.network is not None
    offset = 0.01 * torch.randn(len(slow.params), dtype=dtype)
    start, step, rows = slow.params.clone(), AffineStep(offset, 0.1), torch.randperm(12)

    torch.manual_seed(4)
    expected, losses = start.clone(), []
    for part in rows.view(3, 4):
        grad, loss = slow.gradient(expected, (inputs[part], targets[part]))
        expected = step(expected, grad)
        losses.append(float(loss))
    after = torch.get_rng_state()

    torch.manual_seed(4)
    y = start.clone()
    found = fast.network.descend(y, (inputs, targets, rows.numpy()), 3, step, (), start)
    assert found == pytest.approx(losses, rel=TOLERANCE[dtype])
    assert relative(y - start, expected - start) < TOLERANCE[dtype]
    assert torch.equal(torch.get_rng_state(), after)

    torch.manual_seed(5)
    grad, loss = fast.gradient(start, (inputs, targets))
    torch.manual_seed(5)
    other, same = slow.gradient(start, (inputs, targets))
    assert relative(grad, other) < TOLERANCE[dtype]
    assert float(loss) == pytest.approx(float(same), rel=TOLERANCE[dtype])


def test_nan_is_not_hidden():
    model, inputs, targets = ready("other pooling", 3)
    inputs[1, 0, 4, 4] = torch.nan
    grad, loss = model.gradient(model.params.clone(), (inputs, targets))
    assert torch.isnan(loss)
    assert torch.isnan(grad).any()


@pytest.mark.parametrize("label", [-1, 62, 2**40])
def test_a_label_that_is_no_output_is_an_error_and_not_a_write_somewhere(label):
    model, inputs, targets = ready("FEMNIST", 4)
    targets[2] = label
    with pytest.raises(fedgbo.DataError, match=r"0 \.\.\. 61"):
        model.backward((inputs, targets))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: nn.Sequential(*list(m)[:-4]),  # ends with images
        lambda m: nn.Sequential(nn.Conv2d(1, 32, 3, dilation=2), *list(m)[1:]),
        lambda m: nn.Sequential(nn.Conv2d(1, 32, 3, padding="same"), *list(m)[1:]),
        lambda m: nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, padding_mode="circular"), *list(m)[1:]),
        lambda m: nn.Sequential(nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3, groups=2), *list(m)[1:]),
        lambda m: nn.Sequential(*list(m)[:1], nn.MaxPool2d(2, ceil_mode=True), *list(m)[2:]),
        lambda m: nn.Sequential(*list(m)[:1], nn.AvgPool2d(2, padding=1, count_include_pad=False), *list(m)[2:]),
        lambda m: nn.Sequential(*m, nn.GELU(approximate="tanh")),
        lambda m: nn.Sequential(*m, *[nn.Linear(62, 62)] * 2),  # one layer in two places
        lambda m: m.bfloat16(),
        lambda m: m.requires_grad_(False),
        lambda m: nn.Sequential(*list(m)[:1], nn.AlphaDropout(0.5), *list(m)[1:]),
        lambda m: nn.Sequential(*list(m)[:1], nn.Dropout(1.0), *list(m)[1:]),  # for which torch draws nothing
    ],
)
def test_what_it_does_not_know_it_leaves_to_torch(change):
    module, inputs, _ = case("FEMNIST", 2)
    assert network_for(module, inputs, functional.cross_entropy) is not None
    assert network_for(change(module), inputs, functional.cross_entropy) is None


class Squares(Term):
    """A term on the hidden layer that the C code does not have."""

    needs_hidden = True

    def loss(self, hidden):
        return hidden.square().mean()


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["digits", "odd MLP", "other pooling"])
def test_the_term_of_fedmax_equals_autograd(name, batch, kind):
    module, inputs, targets = case(name, batch, kind)
    slow, fast = (FlatModel(copy.deepcopy(module), functional.cross_entropy, level) for level in (STOCK, LEVELS[0]))
    fast.specialise(inputs, (MaxEntropy(2.0),))
    slow.specialise(inputs, (MaxEntropy(2.0),))
    assert fast.network is not None
    assert slow.network is None
    expected, expected_loss = slow.gradient(fast.params.clone(), (inputs, targets), (MaxEntropy(2.0),))
    grad, found = fast.gradient(fast.params.clone(), (inputs, targets), (MaxEntropy(2.0),))
    assert float(found) == pytest.approx(float(expected_loss), rel=TOLERANCE[kind])
    assert relative(grad, expected) < TOLERANCE[kind]
    if name == "digits":  # the term matters there
        assert relative(slow.gradient(fast.params.clone(), (inputs, targets))[0], expected) > 1e-3


def test_hooks_another_loss_and_terms_on_the_hidden_layer_leave_it_to_torch():
    module, inputs, _ = case("FEMNIST", 2)
    for loss, terms in ((functional.l1_loss, ()), (functional.cross_entropy, (Squares(),))):
        model = FlatModel(module, loss)
        model.specialise(inputs, terms)
        assert model.network is None
    module[0].register_forward_hook(lambda *_: None)
    assert network_for(module, inputs, functional.cross_entropy) is None


def test_batches_of_another_shape_or_type_are_left_to_torch():
    model, inputs, targets = ready("no linear layer", 4)
    assert model.network.takes(inputs, targets)
    assert not model.network.takes(inputs.double(), targets)
    assert not model.network.takes(inputs, targets.int())
    assert not model.network.takes(torch.randn(4, 2, 7, 7), targets)
    loss = model.backward((torch.randn(4, 2, 7, 7), targets))  # which the global pooling allows
    assert torch.isfinite(loss)


def test_evaluation_after_training_sees_the_parameters_it_is_given():
    model, inputs, targets = ready("FEMNIST", 4)
    start = model.params.clone()
    expected = model.outputs(start, inputs)
    model.step((inputs, targets), (), AffineStep(0.0, 0.5))
    trained = model.release()
    assert not torch.equal(trained, start)
    assert torch.equal(model.outputs(start, inputs), expected)
    assert not torch.equal(model.outputs(trained, inputs), expected)
