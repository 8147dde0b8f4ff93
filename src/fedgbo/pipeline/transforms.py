"""Changes of uploads between client and server."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedgbo.core import Number, State, Transform, Upload, positive


@dataclass(frozen=True)
class ClipNorm(Transform):
    """Scales an upload down so that its Euclidean norm is at most `norm`.

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
        scaled = {name: x * (self.norm / norm) for name, x in tensors.items()}
        return replace(upload, state=State.of_tensors(scaled))


TRANSFORMS: dict[str, type[Transform]] = {"clipnorm": ClipNorm}
