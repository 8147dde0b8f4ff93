"""The optimiser of the paper's Section 3: an Update, a Tracking and an Inverse step, as pure functions.

One definition serves clients (fixed statistics), MFL (statistics that move) and the server (AdaptiveFedOpt).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fedgbo.core.errors import ConfigError

Stats = Mapping[str, Tensor]


class Optimiser(ABC):
    """Formulas over flat vectors. It holds hyperparameters only (a frozen dataclass), never tensors."""

    # Operations per parameter and local step, as the paper counts them (Table 6). An optimiser that does not say
    # counts as plain SGD: one multiplication, one subtraction.
    fixed_ops: ClassVar[int] = 2
    moving_ops: ClassVar[int] = 2
    # Whether the formulas treat every number of the vectors by itself (no norms, no sums over them). A class that says
    # so lets the server take its step piece by piece, in the processor's cache.
    elementwise: ClassVar[bool] = False

    def init(self, params: Tensor) -> Stats:
        """Return the statistics at round 0."""
        return {}

    @abstractmethod
    def update(self, params: Tensor, stats: Stats, grad: Tensor) -> Tensor:
        """U, applied: return y - U(lr, g, s) with the statistics fixed."""

    def affine(self, stats: Stats) -> tuple[Tensor | float, Tensor | float] | None:
        """Return (a, b) such that U = a + b g while the statistics are fixed, each a vector or one number.

        It saves time: clients then compute that part of the step once a round. By default None: `update` alone speaks.
        """
        return None

    def track(self, stats: Stats, grad: Tensor) -> Stats:
        """T: return the statistics after seeing `grad`."""
        return stats

    def invert(self, stats: Stats, delta: Tensor, steps: float) -> Tensor:
        """I: return the mean gradient of `steps` updates with fixed statistics that together moved by
        delta = x_t - x_{t+1}. Leave it out if U has no inverse; FedGBO then sends gradients.
        """
        raise ConfigError(f"{type(self).__name__} has no inverse step; use FedGBO(..., inverse=False)")

    def learn(self, stats: Stats, delta: Tensor, steps: float) -> Stats:
        """T after I: return the statistics after a round that moved the model by delta = x_t - x_{t+1}.

        An optimiser whose two formulas simplify when put together may say what they make.
        """
        return self.track(stats, self.invert(stats, delta, steps))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let no class inherit a `learn` that is older than its `track` or `invert`."""
        super().__init_subclass__(**kwargs)
        newest = next(kind for kind in cls.__mro__ if not {"learn", "track", "invert"}.isdisjoint(vars(kind)))
        if "learn" not in vars(newest):
            cls.learn = Optimiser.learn  # type: ignore[method-assign]

    def step(self, params: Tensor, stats: Stats, grad: Tensor) -> tuple[Tensor, Stats]:
        """One step with statistics that move: MFL's clients, AdaptiveFedOpt's server.

        The built-in optimisers step with the freshly tracked statistics. This default, for an optimiser that does not
        say, updates with the old ones, then tracks.
        """
        return self.update(params, stats, grad), self.track(stats, grad)

    @property
    def has_inverse(self) -> bool:
        """Whether `invert` is defined."""
        return type(self).invert is not Optimiser.invert
