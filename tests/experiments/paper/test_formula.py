import pytest

from fedgbo.core.errors import ConfigError
from fedgbo.experiments.paper.formula_table import evaluate, same

VALUES = {"η": 0.5, "β": 0.25, "g": 3.0, "v": 4.0, "ε": 2.0, "K": 10.0, "x_t": 7.0, "x_{t+1}": 1.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("η g / (√v + ε)", 0.375),
        ("1 / (η K) (x_t - x_{t+1})", 1.2),  # from left to right: (1/5) · 6
        ("β v + (1 - β) g²", 7.75),
        ("g - η - 1", 1.5),
        ("√(v v) g²", 36.0),
    ],
)
def test_values(text, value):
    assert evaluate(text, VALUES) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("η & g", "cannot read '&'"),
        ("η (g", "a bracket is not closed"),
        ("η g)", r"'\)' is out of place"),
        ("η +", "a number or a known name is missing at its end"),
        ("η m", "a number or a known name is missing where 'm' is"),
        ("", "missing at its end"),
    ],
)
def test_what_is_no_formula(text, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(text, VALUES)


def test_same():
    assert same("η g / (√v + ε)", "g η / (ε + √v)")
    assert not same("η g", "η g²")
    assert same("m <- β m + g, v <- g²", "m <- g + m β, v <- g g")
    assert not same("m <- β m", "v <- β m")
    assert not same("m <- β m", "m <- β m, v <- g")
    assert not same("v <- β v + (1 - β) g²", "v <- β v + (1 - β) g")
