"""`fedgbo export`: the model of a run as a file."""

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import out
from fedgbo.core import ConfigError
from fedgbo.runs.config import load

KINDS = (".safetensors", ".onnx")


def export(
    run: Annotated[Path, Argument(help="The run's folder.")],
    output: Annotated[
        Path | None,
        opt.Output(help="The file: NAME.safetensors or NAME.onnx. \\[default: model.safetensors in the run's folder]"),
    ] = None,
    best: Annotated[
        bool, Option("--best", help="Export the model of the best evaluation, of a run with --keep-best.")
    ] = False,
) -> None:
    """Write the trained model of a run to a file: a state_dict with the names of your model's layers, or ONNX.

    fedgbo export runs/mine -o model.safetensors

    fedgbo export runs/mine -o model.onnx

    The first is read by safetensors.torch.load_file and by fedgbo's initial_params, the second by ONNX runtimes; it
    needs the extra onnx.
    """
    target = output or run / "model.safetensors"
    if target.suffix not in KINDS:
        raise ConfigError(f"--output {target}: the name must end in {' or '.join(KINDS)}")
    result = load(run)
    opt.check_output(target)
    result.save(target, best=best)
    size = f"{sum(p.numel() for p in result.model(best=best).parameters()):,} parameters"
    at = result.best.round if best else result.history[-1].round if result.history else 0
    out.print(escape(f"wrote {target}: {size} after round {at}"))
