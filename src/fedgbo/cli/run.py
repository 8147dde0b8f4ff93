"""`fedgbo run` and `fedgbo resume`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import one_run, out, print_json, quantity, say
from fedgbo.core.errors import DivergenceError, RankError
from fedgbo.costs.probe import probe
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import RunConfig
from fedgbo.runs.execute import execute, read_config
from fedgbo.runs.result import Result
from fedgbo.runs.together import ask_leader, leads

Hyper = partial(Option, rich_help_panel="Hyperparameters")


def run(
    items: opt.Items = None,
    task: opt.Task = None,
    algorithm: opt.Algorithm = None,
    optimiser: opt.Optimiser = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    local_steps: opt.LocalSteps = None,
    seed: opt.Seed = None,
    eval_every: opt.EvalEvery = None,
    clients_per_round: opt.ClientsPerRound = None,
    batch_size: opt.BatchSize = None,
    test_samples: opt.TestSamples = None,
    metrics: Annotated[
        opt.Texts, Option(help="Measure each round: cosine, or drift (twice the work); repeatable.")
    ] = None,
    lr: Annotated[float | None, Hyper(help="Clients' learning rate.")] = None,
    server_lr: Annotated[float | None, Hyper(help="AdaptiveFedOpt's server learning rate.")] = None,
    beta: Annotated[float | None, Hyper(help="Decay of SGDm or RMSProp; FedMAX's weight.")] = None,
    beta1: Annotated[float | None, Hyper(help="Adam's.")] = None,
    beta2: Annotated[float | None, Hyper(help="Adam's.")] = None,
    eps: Annotated[float | None, Hyper(help="RMSProp's and Adam's.")] = None,
    mu: Annotated[float | None, Hyper(help="FedProx's pull.")] = None,
    workers: opt.Workers = None,
    device: opt.Device = "cpu",
    to: Annotated[Path | None, opt.Out(help="Folder of the run. \\[default: runs/<name>-<time>]")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train one algorithm on one task, into a run folder.

    Settings come from the file, then from the flags, then from key=value; later ones override earlier ones:

    fedgbo run --algorithm fedgbo --optimiser sgdm --rounds 50

    fedgbo run my.toml lr=0.05 seed=3
    """
    flags: dict[str, Any] = {
        "task": task, "algorithm": algorithm, "optimiser": optimiser, "preset": preset, "rounds": rounds,
        "local_steps": local_steps, "seed": seed, "eval_every": eval_every,
        "clients_per_round": _number(clients_per_round), "batch_size": _number(batch_size),
        "test_samples": test_samples, "metrics": metrics or None,
        "lr": lr, "server_lr": server_lr, "beta": beta, "beta1": beta1, "beta2": beta2, "eps": eps, "mu": mu,
    }  # fmt: skip

    def ask() -> dict[str, Any]:
        config = opt.requested_run(items, flags, quiet or as_json)
        folder = to or opt.new_folder(config.task["name"], config.label)
        return {"config": config.model_dump(), "folder": str(folder)}

    asked = ask_leader(ask)
    config, folder = RunConfig(**asked["config"]), Path(asked["folder"])
    _carry_out(config, folder, resume=False, workers=workers, device=device, as_json=as_json, quiet=quiet)


def resume(
    folder: Annotated[Path, Argument(help="The run's folder.")],
    rounds: Annotated[int | None, Option(help="Resume up to this many rounds instead.")] = None,
    workers: opt.Workers = None,
    device: opt.Device = "cpu",
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Resume a run that was stopped or killed. The result is bit for bit that of an uninterrupted run."""
    config = RunConfig(**ask_leader(lambda: read_config(folder).model_dump()))
    if rounds is not None:
        config = config.model_copy(update={"rounds": rounds})
    _carry_out(config, folder, resume=True, workers=workers, device=device, as_json=as_json, quiet=quiet)


def _carry_out(
    config: RunConfig, folder: Path, *, resume: bool, workers: int | None, device: str, as_json: bool, quiet: bool
) -> None:
    try:
        with one_run(config.label, quiet or as_json or not leads()) as callbacks:
            result = execute(config, folder, callbacks, resume, workers, device)
    except KeyboardInterrupt:
        say(f"stopped; resume with: fedgbo resume {folder}")
        sys.exit(130)
    except DivergenceError:
        say(f"all rounds before the divergence are kept in {folder}")
        raise
    except RankError:
        say(f"stopped; resume, with any number of processes, with: fedgbo resume {folder}")
        raise
    if not leads():
        return
    memory = len(probe(config.build_algorithm(), 1).memory) * result.params.nbytes
    if as_json:
        print_json(_summary(result, memory, folder))
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
    if last.accuracy is None:
        score = f"test loss {last.loss:.4g} (lowest {best.loss:.4g}"
    else:
        score = f"test accuracy {last.accuracy:.2%} (best {best.accuracy:.2%}"
    drift = ""
    if last.drift is not None:
        drift = f"client models {last.drift['cosine']:.3g} apart (mean cosine distance since the last evaluation)"
        if "error" in last.drift:
            error, bound = last.drift["error"], last.drift["bound"]
            drift += f"; gradient perturbation {error:.3g}, bound (3) estimated at {bound:.3g}"
        drift += "\n"
    return (
        f"{score} at round {best.round}) after {last.round} rounds in {last.seconds:.1f} s; "
        f"{quantity(last.upload_bytes, 'B', 1024)} up, {quantity(last.download_bytes, 'B', 1024)} down, "
        f"{quantity(last.flops, 'FLOP')} on clients; each holds {quantity(memory_bytes, 'B', 1024)}\n"
        f"{drift}{folder}"
    )


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
