"""Aggregators combine a round's uploads into one state."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from fedgbo.core.state import State
from fedgbo.core.upload import Upload


class Aggregator(ABC):
    """A pure function of a round's uploads whose result does not depend on their order."""

    @abstractmethod
    def combine(self, uploads: Iterable[Upload]) -> State:
        """Return the combined vectors, in the type of the uploads. Uploads come in ascending order of clients."""

    def weight(self, upload: Upload) -> int:
        """Return how much an upload counts: also in the mean number of local steps that `server_update` is given."""
        return 1
