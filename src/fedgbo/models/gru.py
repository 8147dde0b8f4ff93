"""Recurrent networks."""

from torch import Tensor, nn


class LastStep(nn.Module):
    """A character model: embedding, stacked GRU, and scores of the next character from the last time step only."""

    def __init__(self, symbols: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.gru = nn.GRU(embedding, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, symbols)

    def forward(self, characters: Tensor) -> Tensor:
        """Turn (B, time) numbers of characters into (B, symbols) scores."""
        states, _ = self.gru(self.embedding(characters))  # (B, time, hidden)
        scores: Tensor = self.output(states[:, -1])
        return scores


def shakespeare_gru() -> nn.Module:
    """Build the paper's network for Shakespeare: 79 characters, two layers of 128 units; 162,887 parameters."""
    return LastStep(symbols=79, embedding=8, hidden=128, layers=2)
