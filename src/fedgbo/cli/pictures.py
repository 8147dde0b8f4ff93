"""Samples and label skew as text: half blocks for images, shades for shares."""

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from fedgbo.data.samples import Samples, SparseSamples, WindowSamples
from fedgbo.data.shakespeare import decode
from fedgbo.data.store import Array
from fedgbo.reports.skew import Skew
from fedgbo.data.windows import WindowSamples
from fedgbo.reports.label_skew import Skew

SHADES = " ░▒▓█"


def heat_map(skew: Skew, most: int = 20) -> Text:
    """Return a line for each client, a character for each class: darker where the client has more of it."""
    shares = skew.counts[:most] / skew.counts[:most].sum(axis=1, keepdims=True)
    steps = np.ceil(shares * (len(SHADES) - 1)).astype(int)
    width = max(len(str(client)) for client in skew.clients[:most])
    lines = [
        f"{client:>{width}} |{''.join(SHADES[step] for step in row)}|"
        for client, row in zip(skew.clients[:most], steps, strict=False)
    ]
    return Text("\n".join(lines))


def show_samples(samples: Samples, rows: list[int], vocabulary: Array | None = None) -> Text:
    """Return some samples with their targets, in the way that fits their kind."""
    inputs, targets = samples.batch(np.array(rows))
    if isinstance(samples, WindowSamples):
        lines = [
            f"{decode(x.numpy())!r} -> {decode(y.reshape(1).numpy())!r}" for x, y in zip(inputs, targets, strict=True)
        ]
    elif isinstance(samples, SparseSamples):
        lines = [f"{_words(x.numpy(), vocabulary)} -> {int(y)}" for x, y in zip(inputs, targets, strict=True)]
    elif inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        return _images(inputs.numpy(), [str(int(y)) for y in targets])
    else:
        lines = [f"{tuple(x.shape)} -> {y.tolist()}" for x, y in zip(inputs, targets, strict=True)]
    return Text("\n".join(lines))


def _words(pairs: Array, vocabulary: Array | None) -> str:
    used = pairs[pairs[:, 1] > 0, 0].astype(int)
    return " ".join(f"#{i}" if vocabulary is None else str(vocabulary[i]) for i in used)


def _images(images: Array, labels: list[str]) -> Text:
    """Two pixels a character: the upper one as foreground of a half block, the lower one as background."""
    low, high = images.min(axis=(1, 2, 3), keepdims=True), images.max(axis=(1, 2, 3), keepdims=True)
    grey = ((images - low) / np.maximum(high - low, 1e-9) * 255).astype(int)  # (N, C, H, W)
    grey = np.repeat(grey, 3, axis=1) if grey.shape[1] == 1 else grey
    if grey.shape[2] % 2:
        grey = np.pad(grey, [(0, 0), (0, 0), (0, 1), (0, 0)])
    text, width = Text(), grey.shape[3]
    text.append(" ".join(label.ljust(width)[:width] for label in labels) + "\n")
    for y in range(0, grey.shape[2], 2):
        for image in grey:
            for x in range(width):
                text.append("▀", Style(color=_colour(image[:, y, x]), bgcolor=_colour(image[:, y + 1, x])))
            text.append(" ")
        text.append("\n")
    return text


def _colour(pixel: Array) -> Color:
    return Color.from_rgb(*(float(value) for value in pixel))
