"""Theorem 1 and Corollary 1: a bound on the mean squared gradient norm of FedGBO with SGDm on nonconvex objectives.

The paper analyses m <- β m + g, x <- x - η̃ m. Our SGDm, like the paper's experiments, has m <- β m + (1 - β) g. The two
are the same for η̃ = K η (1 - β), where η is the learning rate of `SGDm`. The third term has (1 - β)², as in the paper's
Section 4 and in its proof; the statement in the appendix omits the square.
"""

import math
from dataclasses import asdict, dataclass

from fedgbo.core import ConfigError, decay, not_negative, positive, whole

LARGEST = 1e50  # of the constants: Y multiplies four of them
MUCH = 10  # Corollary 1 needs T "much larger" than 1 / (1 - β): ten times, so that T̃ is at least 0.9 T


@dataclass(frozen=True)
class Problem:
    """The constants of Assumptions 1 to 5."""

    smoothness: float = 1.0  # L, of every sample's gradient
    gradient: float = 1.0  # R, bounds the norm of every stochastic gradient
    heterogeneity: float = 1.0  # G, bounds the clients' root mean square distance from the mean gradient
    noise: float = 1.0  # σ, bounds the standard deviation of a client's minibatch gradient
    gap: float = 1.0  # F(x_0) - F*

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            (positive if name in ("smoothness", "gradient") else not_negative)(name, value)
            if value > LARGEST:
                raise ConfigError(f"{name} is too large for the computation, {value:g}; give at most {LARGEST:g}")


@dataclass(frozen=True)
class Training:
    """The settings of FedGBO with SGDm."""

    beta: float
    local_steps: int  # K
    rounds: int  # T
    step: float  # η̃ = K η (1 - β)
    lipschitz: float | None = None  # B, ‖U(g)‖ <= B ‖g‖; None: 1 / (1 - β), sufficient for bounded gradients

    def __post_init__(self) -> None:
        decay("beta", self.beta)
        whole("local_steps", self.local_steps)
        whole("rounds", self.rounds)
        positive("step", self.step)
        if self.lipschitz is not None:
            positive("lipschitz", self.lipschitz)

    @property
    def lr(self) -> float:
        return self.step / (self.local_steps * (1 - self.beta))  # η of SGDm

    @property
    def b(self) -> float:
        return 1 / (1 - self.beta) if self.lipschitz is None else self.lipschitz

    @property
    def horizon(self) -> float:
        return round(1 / (1 - self.beta), 9)  # comparable with T: 100 for β = 0.99, not 99.99999999999991

    @property
    def effective_rounds(self) -> float:
        return self.rounds - self.beta / (1 - self.beta)  # T̃

    @property
    def long_enough(self) -> bool:
        return self.rounds > self.horizon  # which Theorem 1 requires


@dataclass(frozen=True)
class Bound:
    """The three terms whose sum bounds E‖∇F(x_t)‖², where t is drawn with weights 1 - β^(T - t)."""

    start: float  # the remaining distance from x_0
    drift: float  # biased client gradients
    momentum: float  # the size and the bias of the gradients in the momentum

    @property
    def total(self) -> float:
        return self.start + self.drift + self.momentum

    @property
    def dominant(self) -> str:
        terms = asdict(self)
        return max(terms, key=lambda name: terms[name])


def step_of(lr: float, beta: float, local_steps: int) -> float:
    """Return η̃ = K η (1 - β) for SGDm's learning rate η."""
    positive("lr", lr)
    return local_steps * lr * (1 - beta)


def corollary_step(c: float, beta: float, rounds: int) -> float:
    """Return Corollary 1's η̃ = (1 - β) 2 C / √T. SGDm's learning rate is then 2 C / (K √T) for every β."""
    positive("c", c)
    return (1 - beta) * 2 * c / math.sqrt(rounds)


def best_c(problem: Problem, beta: float) -> float:
    """Return the C that minimises the two terms of Corollary 1 that fall as 1/√T; they are equal there."""
    if not problem.gap:
        raise ConfigError("with a gap of 0 the best C is 0; give C (--c) or a learning rate (--lr)")
    # (F(x_0) - F*) / C = 4 C L (1 + β) R² / (1 - β)
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
    return _terms(problem, training, training.rounds / training.effective_rounds)


def corollary(problem: Problem, training: Training) -> Bound:
    """Return Corollary 1's bound for the C that corresponds to `training.step`; it holds where T̃ / T is near 1."""
    return _terms(problem, training, 1.0)


def floor(problem: Problem, training: Training) -> float:
    """Return the limit of Theorem 1's bound, with this step, as T grows."""
    terms = corollary(problem, training)
    return terms.drift + terms.momentum


def _terms(problem: Problem, training: Training, share: float) -> Bound:
    """Return the terms; `share` is T / T̃."""
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


@dataclass(frozen=True)
class Condition:
    """A comparison that should hold."""

    name: str
    value: float
    limit: float
    at_least: bool  # whether the value must be at least the limit, or at most
    strict: bool = False
    of: str = "theorem"  # theorem; corollary; constants: the theorem holds anyway, but with smaller constants too

    @property
    def holds(self) -> bool:
        if self.value == self.limit:
            return not self.strict
        return (self.value > self.limit) == self.at_least

    @property
    def sign(self) -> str:
        return (">" if self.at_least else "<") + ("" if self.strict else "=")


def conditions(problem: Problem, training: Training) -> tuple[Condition, ...]:
    """Return all conditions on the numbers. Whether the constants are those of the objective is not verified."""
    beta, t, horizon, r = training.beta, training.rounds, training.horizon, problem.gradient
    return (
        Condition("beta, decay of the momentum", beta, 1, at_least=False, strict=True),
        Condition("step η̃ = K η (1 - β)", training.step, 0, at_least=True, strict=True),
        Condition("rounds T above 1 / (1 - β)", t, horizon, at_least=True, strict=True),
        Condition("B for SGDm, 1 / (1 - β)", training.b, 1 / (1 - beta), at_least=True),
        Condition(f"rounds T, {MUCH} times 1 / (1 - β)", t, MUCH * horizon, at_least=True, of="corollary"),
        Condition("G, at most R", problem.heterogeneity, r, at_least=False, of="constants"),
        Condition("σ, at most R", problem.noise, r, at_least=False, of="constants"),
    )
