"""Changes of uploads between client and server."""

from dataclasses import dataclass

import numpy as np
import torch

from fedgbo.core import Number, State, Transform, Upload, positive, with_state


@dataclass(frozen=True)
class ClipNorm(Transform):
    """Scales an upload down so that the Euclidean norm of all that the client sends is at most `norm`.

    upload <- upload · min(1, norm / ‖upload‖), over the model difference and all statistics together
    """

    norm: Number

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def encode(self, upload: Upload, rng: np.random.Generator) -> Upload:
        tensors = upload.state.tensors()
        norms = torch.stack([torch.linalg.vector_norm(x, dtype=torch.float64) for x in tensors.values()])
        norm = float(torch.linalg.vector_norm(norms))
        if norm <= self.norm:
            return upload
        return with_state(upload, State.of_tensors({name: x * (self.norm / norm) for name, x in tensors.items()}))


TRANSFORMS: dict[str, type[Transform]] = {"clipnorm": ClipNorm}
