"""`fedgbo run` and `fedgbo resume`."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgbo.cli.console import clean_errors, err, out, quantity, say
from fedgbo.cli.progress import one_run
from fedgbo.core.errors import ConfigError, DivergenceError, FedGBOError, RankError
from fedgbo.costs.probe import probe
from fedgbo.experiments.request import point_at, read_request
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import RunConfig, execute, read_config
from fedgbo.runs.record import Record
from fedgbo.runs.result import Result
from fedgbo.runs.together import ask_leader, leads

HYPERPARAMETERS = "Hyperparameters"


def run(
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG.toml] [KEY=VALUE]...", help="A TOML file, and settings that override it."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task's name, or my_file.py:function. \\[default: digits]")] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="An algorithm's name, or my_file.py:Class. \\[default: fedgbo]")
    ] = None,
    optimiser: Annotated[str | None, typer.Option(help="An optimiser's name, or my_file.py:Class.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Tuned settings to start from: a name, a .csv of fedgbo tune, or none.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. \\[default: 100]")] = None,
    local_steps: Annotated[int | None, typer.Option(help="K, local steps of a client. \\[default: 10]")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. \\[default: 0]")] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations. \\[default: so that there are 100]")
    ] = None,
    clients_per_round: Annotated[str | None, typer.Option(help="M, or all. \\[default: the task's]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="B, or full. \\[default: the task's]")] = None,
    test_samples: Annotated[int | None, typer.Option(help="Evaluate on a fixed random sample of the test set.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="Measure in every round: cosine, or drift (twice the work). May be repeated."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Clients' learning rate.", rich_help_panel=HYPERPARAMETERS)] = None,
    server_lr: Annotated[
        float | None, typer.Option(help="AdaptiveFedOpt's server learning rate.", rich_help_panel=HYPERPARAMETERS)
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Decay of SGDm or RMSProp; FedMAX's weight.", rich_help_panel=HYPERPARAMETERS)
    ] = None,
    beta1: Annotated[float | None, typer.Option(help="Adam's.", rich_help_panel=HYPERPARAMETERS)] = None,
    beta2: Annotated[float | None, typer.Option(help="Adam's.", rich_help_panel=HYPERPARAMETERS)] = None,
    eps: Annotated[float | None, typer.Option(help="RMSProp's and Adam's.", rich_help_panel=HYPERPARAMETERS)] = None,
    mu: Annotated[float | None, typer.Option(help="FedProx's pull.", rich_help_panel=HYPERPARAMETERS)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Clients trained at the same time. \\[default: the cores]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ..., or auto for a GPU where there is one.")] = "cpu",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run. \\[default: runs/<name>-<time>]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train one algorithm on one task, into a run folder.

    Settings come from the file, then from the flags, then from key=value, each stronger than the one before:

    fedgbo run --algorithm fedgbo --optimiser sgdm --rounds 50

    fedgbo run my.toml lr=0.05 seed=3
    """
    with clean_errors():
        file, overrides = sort_items(items or [])
        flags: dict[str, Any] = {
            "task": task, "algorithm": algorithm, "optimiser": optimiser, "preset": preset, "rounds": rounds,
            "local_steps": local_steps, "seed": seed, "eval_every": eval_every,
            "clients_per_round": _number(clients_per_round), "batch_size": _number(batch_size),
            "test_samples": test_samples, "metrics": metrics or None,
            "lr": lr, "server_lr": server_lr, "beta": beta, "beta1": beta1, "beta2": beta2, "eps": eps, "mu": mu,
        }  # fmt: skip

        def ask() -> dict[str, Any]:
            config, note = resolve(file, flags, overrides)
            if note and not (as_json or quiet):
                err.print(f"{config.label} on {config.task['name']}, {note}")
            folder = to or Path("runs") / f"{config.task['name'].rpartition(':')[2]}-{config.label}-{now()}"
            return {"config": config.model_dump(), "folder": str(folder)}

        asked = ask_leader(ask)
        config, folder = RunConfig(**asked["config"]), Path(asked["folder"])
        _carry_out(config, folder, resume=False, workers=workers, device=device, as_json=as_json, quiet=quiet)


def resume(
    folder: Annotated[Path, typer.Argument(help="The run's folder.")],
    rounds: Annotated[int | None, typer.Option(help="Go on to this many rounds instead.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Clients trained at the same time. \\[default: the cores]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ..., or auto for a GPU where there is one.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Go on with a run that was stopped or killed, bit for bit as if it had not been."""
    with clean_errors():
        config = RunConfig(**ask_leader(lambda: read_config(folder).model_dump()))
        if rounds is not None:
            config = config.model_copy(update={"rounds": rounds})
        _carry_out(config, folder, resume=True, workers=workers, device=device, as_json=as_json, quiet=quiet)


def resolve(file: Path | None, flags: dict[str, Any], overrides: list[str]) -> tuple[RunConfig, str | None]:
    """Return the run that a file, flags and overrides ask for, and a line about its preset."""
    request = read_request(file, flags, overrides)
    try:
        config, note = request.resolve()
        config.build_algorithm()
    except FedGBOError as error:
        raise (point_at(error, file) if file else error) from error
    return config, note


def _carry_out(
    config: RunConfig, folder: Path, *, resume: bool, workers: int | None, device: str, as_json: bool, quiet: bool
) -> None:
    try:
        with one_run(config.label, quiet or as_json or not leads()) as callbacks:
            result = execute(config, folder, callbacks, resume, workers, device)
    except KeyboardInterrupt:
        say(f"stopped; go on with: fedgbo resume {folder}")
        sys.exit(130)
    except DivergenceError:
        say(f"all rounds before the divergence are kept in {folder}")
        raise
    except RankError:
        say(f"stopped; go on, with any number of processes, with: fedgbo resume {folder}")
        raise
    if not leads():
        return
    memory = len(probe(config.build_algorithm(), 1).memory) * result.params.nbytes
    if as_json:
        out.print_json(json.dumps(_summary(result, memory, folder)))
    else:
        out.print(_sentence(result, memory, folder))


def _summary(result: Result, memory_bytes: int, folder: Path) -> dict[str, Any]:
    last, best = result.history[-1], result.best
    return {
        "out": str(folder),
        "rounds": last.round,
        "accuracy": last.accuracy,
        "loss": last.loss,
        "best_accuracy": best.accuracy,
        "best_round": best.round,
        "download_bytes": last.download_bytes,
        "upload_bytes": last.upload_bytes,
        "flops": last.flops,
        "counted_flops": last.counted_flops,
        "client_memory_bytes": memory_bytes,
        "seconds": last.seconds,
        "digest": digest(result.state.tensors()),
    } | ({} if last.drift is None else {"drift": last.drift})


def _sentence(result: Result, memory_bytes: int, folder: Path) -> str:
    last, best = result.history[-1], result.best
    score = (
        f"test loss {last.loss:.4g} (lowest {best.loss:.4g}"
        if last.accuracy is None
        else (f"test accuracy {last.accuracy:.2%} (best {best.accuracy:.2%}")
    )
    return (
        f"{score} at round {best.round}) after {last.round} rounds in {last.seconds:.1f} s; "
        f"{quantity(last.upload_bytes, 'B', 1024)} up, {quantity(last.download_bytes, 'B', 1024)} down, "
        f"{quantity(last.flops, 'FLOP')} on clients; each holds {quantity(memory_bytes, 'B', 1024)}\n"
        f"{_drift_line(last)}{folder}"
    )


def _drift_line(record: Record) -> str:
    """Say how far clients drifted lately, where that was measured."""
    drift = record.drift
    if drift is None:
        return ""
    line = f"client models {drift['cosine']:.3g} apart (mean cosine distance since the last evaluation)"
    if "error" in drift:
        line += f"; gradient perturbation {drift['error']:.3g}, bound (3) estimated at {drift['bound']:.3g}"
    return f"{line}\n"


def sort_items(items: list[str]) -> tuple[Path | None, list[str]]:
    """Tell the TOML file from the key=value settings."""
    files = [item for item in items if "=" not in item]
    if len(files) > 1:
        raise ConfigError(f"give one TOML file, not {len(files)}: {', '.join(files)}")
    return Path(files[0]) if files else None, [item for item in items if "=" in item]


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text


def now() -> str:
    """Return the time as part of a folder's name."""
    return time.strftime("%Y%m%d-%H%M%S")
