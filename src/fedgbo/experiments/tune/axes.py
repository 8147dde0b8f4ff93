"""What is searched: an axis for each hyperparameter, with the paper's grid or the user's own values.

The paper's grids are lr in 10, 1, ..., 0.00001 and beta in .3 .6 .9 .99 .999 .9999. It does not print FedProx's mu and
FedMAX's beta: ours are powers of ten around the values that the authors chose in the end (0.001 and 0.1; 0.1 and 1).
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedgbo.core.errors import ConfigError
from fedgbo.core.optimiser import Optimiser
from fedgbo.experiments.presets import optimiser_slots
from fedgbo.runs.describe import find, parameters

RATES = (10.0, 1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001)
DECAYS = (0.3, 0.6, 0.9, 0.99, 0.999, 0.9999)
PULLS = (1.0, 0.1, 0.01, 0.001)  # FedProx's mu
ENTROPIES = (10.0, 1.0, 0.1, 0.01)  # FedMAX's beta


class Axis(BaseModel):
    """One hyperparameter: the values of a grid, or only a range from the first to the last."""

    model_config = ConfigDict(frozen=True)

    name: str
    values: tuple[float, ...]
    decay: bool = False  # whether it is 1 - value that matters, as in exponential means
    range_only: bool = False

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether steps along the axis are factors: of 1 - value for a decay, else of the value."""
        return (1 - self.high if self.decay else self.low) > 0

    def at(self, u: float) -> float:
        """Return the value at u, from 0 (low) to 1 (high), to six digits."""
        low, high = (1 - self.low, 1 - self.high) if self.decay else (self.low, self.high)
        at = low * (high / low) ** u if self.logarithmic else low + u * (high - low)
        return float(f"{1 - at if self.decay else at:.6g}")


def axes_of(algorithm: str, optimiser: str | None, given: Sequence[str]) -> tuple[list[Axis], dict[str, float]]:
    """Return the axes of a search and the settings that are fixed; `given` are the user's KEY=VALUES.

    By default every hyperparameter that has no default is searched: lr, AdaptiveFedOpt's server_lr, the optimiser's
    beta or beta1, mu, FedMAX's beta.

    >>> axes, fixed = axes_of("adaptivefedopt", "adam", ["lr=0.1", "server_lr=0.01:1"])
    >>> [(axis.name, axis.low, axis.high) for axis in axes], fixed
    ([('server_lr', 0.01, 1.0), ('beta1', 0.3, 0.9999)], {'lr': 0.1})
    """
    wanted: dict[str, Axis | None] = _defaults(algorithm, optimiser)
    fixed: dict[str, float] = {}
    for text in given:
        axis = _parse(text, algorithm, optimiser)
        if len(axis.values) == 1:
            fixed[axis.name] = axis.values[0]
            wanted.pop(axis.name, None)
        else:
            wanted[axis.name] = axis
    unknown = [name for name, axis in wanted.items() if axis is None]
    if unknown:
        raise ConfigError(f"no range is known for {unknown[0]}; say where to search, e.g. {unknown[0]}=0.01:1")
    axes = [axis for axis in wanted.values() if axis is not None]
    if not axes:
        raise ConfigError("every setting is fixed, so there is nothing to search; give one a range, e.g. lr=0.01:1")
    return axes, fixed


def _defaults(algorithm: str, optimiser: str | None) -> dict[str, Axis | None]:
    made = find("algorithm", algorithm)
    slots = optimiser_slots(made)
    axes: dict[str, Axis | None] = {"lr": Axis(name="lr", values=RATES)} if slots else {}
    if len(slots) > 1:
        axes["server_lr"] = Axis(name="server_lr", values=RATES)
    for name in _needed(_optimiser(made, optimiser)) if slots else []:
        if name != "lr":
            axes[name] = Axis(name=name, values=DECAYS, decay=True) if _decay(name) else None
    own = {"lr": RATES, "mu": PULLS, "beta": ENTROPIES}
    for name in _needed(made):
        if name not in slots:
            axes[name] = Axis(name=name, values=own[name]) if name in own else None
    return axes


def _optimiser(made: Any, optimiser: str | None) -> Any:
    """Return the optimiser whose settings are searched: the last one, for it is the server's where there is one."""
    takes = list(optimiser_slots(made).values())[-1] is Optimiser
    return find("optimiser", (optimiser or "sgdm") if takes else "sgd")


def _needed(maker: Any) -> list[str]:
    return [name for name, needed in parameters(maker).items() if needed]


def _decay(name: str) -> bool:
    return name.startswith("beta")


def _parse(text: str, algorithm: str, optimiser: str | None) -> Axis:
    name, _, content = (part.strip() for part in text.partition("="))
    separator = ":" if ":" in content else ","
    try:
        values = tuple(float(part) for part in content.split(separator))
    except ValueError:
        values = ()
    wrong = not values or not all(map(math.isfinite, values)) or len(set(values)) < len(values)
    if not name or wrong or (separator == ":" and (len(values) != 2 or values[0] >= values[1])):
        raise ConfigError(f"'{text}' must be KEY=VALUE, KEY=VALUE,VALUE,... or KEY=LOW:HIGH, e.g. lr=0.01:1")
    made = find("algorithm", algorithm)
    inside = bool(optimiser_slots(made)) and name in parameters(_optimiser(made, optimiser))
    return Axis(name=name, values=values, decay=inside and _decay(name), range_only=separator == ":")
