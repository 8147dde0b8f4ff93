import pytest
import torch

from fedgbo.core.errors import ConfigError
from fedgbo.costs.flops import forward_macs
from fedgbo.models.paper import digits_cnn, paper_cnn


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("channels", "size", "classes", "count", "macs"),
    [(3, 32, 100, 1_250_852, 5_163_072), (1, 28, 62, 870_334, 3_305_280)],
)
def test_size_and_work_are_the_papers(channels, size, classes, count, macs):
    model = paper_cnn(channels, size, classes)
    assert parameters(model) == count
    assert forward_macs(model, torch.zeros(2, channels, size, size)) == macs


def test_the_function_is_the_papers_with_relu_before_pooling():
    torch.manual_seed(0)
    model = paper_cnn(3, 28, 100)
    x = torch.randn(4, 3, 28, 28)
    by_hand = torch.max_pool2d(torch.relu(model.conv1(x)), 2)
    by_hand = torch.max_pool2d(torch.relu(model.conv2(by_hand)), 2)
    by_hand = model.output(torch.relu(model.hidden(by_hand.flatten(1))))
    torch.testing.assert_close(model(x), by_hand)


def test_smallest_image():
    assert paper_cnn(1, 10, 2)(torch.zeros(1, 1, 10, 10)).shape == (1, 2)
    with pytest.raises(ConfigError, match="size must be a whole number of at least 10"):
        paper_cnn(1, 9, 2)


def test_digits_network():
    assert parameters(digits_cnn()) == 10_090
