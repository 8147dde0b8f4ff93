import pytest
import torch

from fedgbo.engines.layers import conv, recurrent
from fedgbo.native import library


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["native", "torch"])
def backend(request, monkeypatch):
    """Both with the C loops and, as without a compiler, on torch's operations alone."""
    if request.param == "torch":
        monkeypatch.setattr(recurrent, "library", lambda: None)
        monkeypatch.setattr(conv, "library", lambda: None)
    elif library() is None:
        pytest.skip("no C compiler here")
    return request.param
