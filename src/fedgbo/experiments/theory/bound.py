"""Theorem 1 and Corollary 1: a bound on the mean squared gradient norm of FedGBO with SGDm on nonconvex objectives.

The paper analyses m <- β m + g, x <- x - η̃ m; ours, like its experiments, has m <- β m + (1 - β) g. They are the same
for η̃ = K η (1 - β), with η the learning rate of `SGDm`. The third term has (1 - β)², as the paper's Section 4 and its
proof have it; the statement in the appendix lost the square.
"""

import math
from dataclasses import asdict, dataclass

from fedgbo.core.checks import decay, not_negative, positive, whole
from fedgbo.core.errors import ConfigError

LARGEST = 1e50  # of the constants: Y has four of them multiplied


@dataclass(frozen=True)
class Problem:
    """The constants of Assumptions 1 to 5."""

    smoothness: float = 1.0  # L, of every sample's gradient
    gradient: float = 1.0  # R, bounds the norm of every stochastic gradient
    heterogeneity: float = 1.0  # G, bounds the clients' root mean square distance from the mean gradient
    noise: float = 1.0  # σ, bounds the standard deviation of a client's minibatch gradient
    gap: float = 1.0  # F(x_0) - F*

    def __post_init__(self) -> None:
        positive("smoothness", self.smoothness)
        positive("gradient", self.gradient)
        for name in ("heterogeneity", "noise", "gap"):
            not_negative(name, getattr(self, name))
        for name, value in asdict(self).items():
            if value > LARGEST:
                raise ConfigError(f"{name} is too large to be computed with, {value:g}; give at most {LARGEST:g}")


@dataclass(frozen=True)
class Training:
    """How FedGBO with SGDm is run."""

    beta: float
    local_steps: int  # K
    rounds: int  # T
    step: float  # η̃ = K η (1 - β)
    lipschitz: float | None = None  # B, ‖U(g)‖ <= B ‖g‖; None: 1 / (1 - β), which is enough where gradients are bounded

    def __post_init__(self) -> None:
        decay("beta", self.beta)
        whole("local_steps", self.local_steps)
        whole("rounds", self.rounds)
        positive("step", self.step)
        if self.lipschitz is not None:
            positive("lipschitz", self.lipschitz)

    @property
    def lr(self) -> float:
        """η, the learning rate of SGDm that makes this step."""
        return self.step / (self.local_steps * (1 - self.beta))

    @property
    def b(self) -> float:
        """B."""
        return 1 / (1 - self.beta) if self.lipschitz is None else self.lipschitz

    @property
    def horizon(self) -> float:
        """1 / (1 - β), to be held against whole numbers: for β = 0.99 it is 100, and not a little less."""
        return round(1 / (1 - self.beta), 9)

    @property
    def effective_rounds(self) -> float:
        """T̃ = T - β / (1 - β)."""
        return self.rounds - self.beta / (1 - self.beta)

    @property
    def long_enough(self) -> bool:
        """Whether T > 1 / (1 - β), without which Theorem 1 says nothing."""
        return self.rounds > self.horizon


@dataclass(frozen=True)
class Bound:
    """The three terms whose sum bounds E‖∇F(x_t)‖², t being drawn with weights 1 - β^(T - t)."""

    start: float  # what is left of the way from x_0
    drift: float  # biased client gradients
    momentum: float  # the size of the gradients that momentum carries on, and their bias

    @property
    def total(self) -> float:
        """The bound."""
        return self.start + self.drift + self.momentum

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        terms = asdict(self)
        return max(terms, key=lambda name: terms[name])


def step_of(lr: float, beta: float, local_steps: int) -> float:
    """Return η̃ = K η (1 - β) for SGDm's learning rate η."""
    positive("lr", lr)
    return local_steps * lr * (1 - beta)


def corollary_step(c: float, beta: float, rounds: int) -> float:
    """Return Corollary 1's η̃ = (1 - β) 2 C / √T: SGDm's learning rate is then 2 C / (K √T), whatever β."""
    positive("c", c)
    return (1 - beta) * 2 * c / math.sqrt(rounds)


def best_c(problem: Problem, beta: float) -> float:
    """Return the C that makes the two terms of Corollary 1 that fall as 1/√T smallest: they are equal there.

    (F(x_0) - F*) / C = 4 C L (1 + β) R² / (1 - β)
    """
    if not problem.gap:
        raise ConfigError("with a gap of 0 the best C is 0; give C (--c) or a learning rate (--lr)")
    growth = 4 * problem.smoothness * (1 + beta) * problem.gradient**2 / (1 - beta)
    return math.sqrt(problem.gap / growth)


def perturbation(problem: Problem, training: Training) -> float:
    """Return Y = 18 B² L² (R² + G² + σ²/K): η̃² Y bounds E‖e_t‖²."""
    spread = problem.gradient**2 + problem.heterogeneity**2 + problem.noise**2 / training.local_steps
    rate = training.b * problem.smoothness
    return 18 * rate * rate * spread


def theorem(problem: Problem, training: Training) -> Bound:
    """Return Theorem 1's bound; T must be larger than 1 / (1 - β)."""
    if not training.long_enough:
        raise ConfigError(
            f"Theorem 1 needs more than 1 / (1 - beta) = {training.horizon:g} rounds, not {training.rounds}; "
            "give more rounds or a smaller beta"
        )
    share = training.rounds / training.effective_rounds  # T / T̃
    return _terms(problem, training, share)


def corollary(problem: Problem, training: Training) -> Bound:
    """Return Corollary 1's bound for the C that `training.step` stands for: Theorem 1's with T̃ ≈ T.

    It is smaller than Theorem 1's by the factor T̃ / T, and so a bound only as far as that is near 1.
    """
    return _terms(problem, training, 1.0)


def floor(problem: Problem, training: Training) -> float:
    """Return what Theorem 1's bound falls to, with this step, as T grows."""
    terms = corollary(problem, training)
    return terms.drift + terms.momentum


def _terms(problem: Problem, training: Training, share: float) -> Bound:
    step, beta, y = training.step, training.beta, perturbation(problem, training)
    size = problem.gradient**2 + step * step * y  # R² + η̃² Y
    found = Bound(
        start=share * 2 * (1 - beta) * problem.gap / (step * training.rounds),
        drift=share * step * step * y,
        momentum=share * 2 * step * problem.smoothness * (1 + beta) * size / (1 - beta) ** 2,
    )
    if not math.isfinite(found.total):
        raise ConfigError(f"the bound is too large to be computed, with a step of {step:g}; give smaller constants")
    return found
