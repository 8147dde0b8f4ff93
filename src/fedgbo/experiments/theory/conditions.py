"""What must hold for Theorem 1 and Corollary 1 to say anything, each with its value."""

from dataclasses import dataclass

from fedgbo.experiments.theory.bound import Problem, Training

MUCH = 10  # Corollary 1 wants T "much larger" than 1 / (1 - β): ten times, so that T̃ is at least 0.9 T


@dataclass(frozen=True)
class Condition:
    """A comparison that ought to hold."""

    name: str
    value: float
    limit: float
    at_least: bool  # whether the value must be at least the limit, or at most
    strict: bool = False
    of: str = "theorem"  # theorem; corollary; constants, where the theorem holds anyway but could be had cheaper

    @property
    def holds(self) -> bool:
        """Whether it does."""
        if self.value == self.limit:
            return not self.strict
        return (self.value > self.limit) == self.at_least

    @property
    def sign(self) -> str:
        """How value and limit are to compare."""
        return (">" if self.at_least else "<") + ("" if self.strict else "=")


def conditions(problem: Problem, training: Training) -> tuple[Condition, ...]:
    """Return all conditions on the numbers; that the constants are those of the objective is the user's word."""
    horizon = training.horizon
    return (
        Condition("beta, decay of the momentum", training.beta, 1, at_least=False, strict=True),
        Condition("step η̃ = K η (1 - β)", training.step, 0, at_least=True, strict=True),
        Condition("rounds T above 1 / (1 - β)", training.rounds, horizon, at_least=True, strict=True),
        Condition("B for SGDm, 1 / (1 - β)", training.b, 1 / (1 - training.beta), at_least=True),
        Condition(
            f"rounds T, {MUCH} times 1 / (1 - β)", training.rounds, MUCH * horizon, at_least=True, of="corollary"
        ),
        Condition("G, which R bounds too", problem.heterogeneity, problem.gradient, at_least=False, of="constants"),
        Condition("σ, which R bounds too", problem.noise, problem.gradient, at_least=False, of="constants"),
    )
