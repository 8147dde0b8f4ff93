"""`fedgbo run`, `fedgbo resume` and `fedgbo export`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.markup import escape
from typer import Argument, Option

from fedgbo.cli import options as opt
from fedgbo.cli.console import exit_code, one_run, out, print_json, rounds_done, say
from fedgbo.core import ConfigError, DivergenceError, RankError
from fedgbo.costs.closed import exchange
from fedgbo.experiments.request import parse_value
from fedgbo.reports.sections import settings_of
from fedgbo.reports.table import quantity
from fedgbo.runs.checkpoint import digest
from fedgbo.runs.config import RunConfig, execute, load, read_config
from fedgbo.runs.ranks import ask_rank0, leads
from fedgbo.runs.record import Record, written
from fedgbo.runs.result import Result
from fedgbo.runs.round import Progress

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
    weights: opt.Weights = None,
    metrics: Annotated[
        opt.Texts, Option(help="Measure client drift in each round: cosine, or drift (twice the work). Repeatable.")
    ] = None,
    lr: Annotated[float | None, Hyper(help="The clients' learning rate.")] = None,
    server_lr: Annotated[float | None, Hyper(help="The server's learning rate, for AdaptiveFedOpt.")] = None,
    beta: Annotated[float | None, Hyper(help="The decay of SGDm or RMSProp, or the weight of FedMAX.")] = None,
    beta1: Annotated[float | None, Hyper(help="The decay of Adam's first moment.")] = None,
    beta2: Annotated[float | None, Hyper(help="The decay of Adam's second moment.")] = None,
    eps: Annotated[float | None, Hyper(help="The number that RMSProp and Adam add to the divisor.")] = None,
    mu: Annotated[float | None, Hyper(help="The weight of FedProx's proximal term.")] = None,
    workers: opt.Workers = None,
    device: opt.Device = "cpu",
    engine: opt.Engine = None,
    explain: opt.Explain = False,
    keep_best: Annotated[bool, Option("--keep-best", help="Also keep the model of the best evaluation.")] = False,
    to: Annotated[Path | None, opt.Out(help="The folder of the run. \\[default: runs/<name>-<time>]")] = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train one algorithm on one task and write a run folder.

    Settings come from the file, then from the flags, then from key=value; later ones override earlier ones:

    fedgbo run --algorithm fedgbo --optimiser sgdm --rounds 50

    fedgbo run my.toml lr=0.05 seed=3
    """
    flags: dict[str, Any] = {
        "task": task, "algorithm": algorithm, "optimiser": optimiser, "preset": preset, "rounds": rounds,
        "local_steps": local_steps, "seed": seed, "eval_every": eval_every,
        "clients_per_round": clients_per_round and parse_value(clients_per_round),
        "batch_size": batch_size and parse_value(batch_size),
        "test_samples": test_samples, "weights": weights, "metrics": metrics or None, "engine": engine,
        "keep_best": keep_best or None,
        "lr": lr, "server_lr": server_lr, "beta": beta, "beta1": beta1, "beta2": beta2, "eps": eps, "mu": mu,
    }  # fmt: skip

    def ask() -> tuple[RunConfig, Path]:
        config = opt.requested_run(items, flags, quiet or as_json)
        return config, to or opt.new_folder(config.task["name"], config.label, claim=not dry_run)

    if dry_run:
        _show_settings(*ask_rank0(ask), as_json)
        return
    _carry_out(*ask_rank0(ask), _How(False, workers, device, explain, as_json, quiet))


def resume(
    folder: Annotated[Path, Argument(help="The folder of the run.")],
    rounds: Annotated[int | None, opt.Whole(help="The new number of rounds of the run.")] = None,
    workers: opt.Workers = None,
    device: opt.Device = "cpu",
    explain: opt.Explain = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Resume a run that was stopped or killed. The result equals that of an uninterrupted run, bit for bit."""
    config, folder = ask_rank0(lambda: (read_config(folder), folder))
    if rounds is not None:
        config = config.model_copy(update={"rounds": rounds})
    _carry_out(config, folder, _How(True, workers, device, explain, as_json, quiet))


def _show_settings(config: RunConfig, folder: Path, as_json: bool) -> None:
    """Check the settings and print them all."""
    config.build_task()  # raises where the data are missing
    if as_json:
        print_json({"out": str(folder), "config": config.complete().model_dump()})
        return
    length = f"{config.rounds} round{'s' if config.rounds > 1 else ''}"
    out.print(f"would run {config.label}: {length}, seed {config.seed}, into {folder}", markup=False)
    for name, value in settings_of(config.complete()).items():
        out.print(f"  {name:<24} {value}", markup=False)
    out.print("nothing was run")


class _How(NamedTuple):
    """How a run is carried out and shown; no result depends on it."""

    resume: bool
    workers: int | None
    device: str
    explain: bool
    as_json: bool
    quiet: bool


class _Explanation:
    """A callback that prints, once, how clients take their local steps."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, progress: Progress) -> None:
        if not self._told:
            say(progress.engine)
        self._told = True


def _carry_out(config: RunConfig, folder: Path, how: _How) -> None:
    try:
        with one_run(config.label, how.quiet or how.as_json or not leads()) as callbacks:
            if how.explain:
                callbacks = [_Explanation(), *callbacks]
            result = execute(config, folder, callbacks, how.resume, how.workers, how.device)
    except KeyboardInterrupt as error:
        say(f"stopped; resume with: fedgbo resume {folder}")
        sys.exit(exit_code(error))
    except DivergenceError:
        say(f"all rounds before the divergence are kept in {folder}")
        raise
    except RankError:
        say(f"stopped; resume, with any number of processes, with: fedgbo resume {folder}")
        raise
    if not leads():
        return
    memory = _client_memory(config, result)
    if how.as_json:
        print_json(_summary(result, memory, folder))
    else:
        out.print(_sentence(result, memory, folder), markup=False)


def _client_memory(config: RunConfig, result: Result) -> int | None:
    """Return the bytes that a client holds, as in the paper's Table 1; None for algorithms without a formula."""
    try:
        return len(exchange(config.built_algorithm, 1).memory) * result.params.nbytes
    except ConfigError:
        return None


def _summary(result: Result, memory_bytes: int | None, folder: Path) -> dict[str, Any]:
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
    } | {
        name: value
        for name in ("validation_loss", "scores", "simulated_seconds", "drift", "note")
        if (value := getattr(last, name))
    }


def _sentence(result: Result, memory_bytes: int | None, folder: Path) -> str:
    last, best = result.history[-1], result.best
    if last.accuracy is None:
        tested = last.loss is not None
        score = f"test loss {last.loss:.4g} (lowest {best.loss:.4g}" if tested else "no test set (last evaluated"
    else:
        now, highest = (written(value or 0.0, last.metric, 2) for value in (last.accuracy, best.accuracy))
        score = f"test {last.metric} {now} (best {highest}"
    flops = "FLOPs not counted" if last.flops is None else f"{quantity(last.flops, 'FLOP')} on clients"
    sent = f"{quantity(last.upload_bytes, 'B', 1024)} up, {quantity(last.download_bytes, 'B', 1024)} down"
    held = "" if memory_bytes is None else f"; each holds {quantity(memory_bytes, 'B', 1024)}"
    lines = [] if last.note is None else [last.note]
    if last.simulated_seconds is not None:
        lines.append(f"simulated time {last.simulated_seconds:,.1f} s ({best.simulated_seconds:,.1f} s until the best)")
    lines += [line for line in (_other_scores(last), _over_clients(last)) if line]
    if last.drift is not None:
        lines.append(f"client models {last.drift['cosine']:.3g} apart (mean cosine distance since the last evaluation)")
        if "error" in last.drift:
            error, bound = last.drift["error"], last.drift["bound"]
            lines[-1] += f"; gradient perturbation {error:.3g}, bound (3) estimated at {bound:.3g}"
    said = f"{score} at round {best.round}) after {rounds_done(last)}; {sent}, {flops}{held}"
    return "\n".join([said, *lines, str(folder)])


def _other_scores(record: Record) -> str:
    """Return the metrics beside the primary one, and those of the validation part, as a line."""
    named = {name: value for name, value in record.scores.items() if not name.startswith("clients.")}
    own = [f"{name} {value:.4g}" for name, value in named.items()]
    return ", ".join(own) if len(own) > 1 else ""


def _over_clients(record: Record) -> str:
    """Return the means over clients as a line."""
    lines = []
    for name in [key.split(".")[1] for key in record.scores if key.startswith("clients.") and key.endswith(".mean")]:
        mean, worst, spread = (record.scores[f"clients.{name}.{what}"] for what in ("mean", "worst_decile", "spread"))
        lines.append(f"{name} {mean:.4g} (worst tenth of clients {worst:.4g}, spread {spread:.4g})")
    return f"mean over clients: {', '.join(lines)}" if lines else ""


KINDS = (".safetensors", ".onnx")


def export(
    run: Annotated[Path, Argument(help="The run's folder.")],
    output: Annotated[
        Path | None,
        opt.Output(help="The file: NAME.safetensors or NAME.onnx. \\[default: model.safetensors in the run's folder]"),
    ] = None,
    best: Annotated[
        bool, Option("--best", help="Export the model of the best evaluation; the run needs --keep-best.")
    ] = False,
) -> None:
    """Write the trained model of a run to a file: a state_dict with the names of your model's layers, or ONNX.

    fedgbo export runs/mine -o model.safetensors

    fedgbo export runs/mine -o model.onnx

    safetensors.torch.load_file and fedgbo's initial_params read the first, ONNX runtimes the second.

    Writing ONNX needs the extra onnx.
    """
    target = output or run / "model.safetensors"
    if target.suffix not in KINDS:
        raise ConfigError(f"--output {target}: the name must end in {' or '.join(KINDS)}")
    result = load(run)
    opt.check_output(target)
    if best and result.best_state is None:
        raise ConfigError(f"{run} did not keep the model of its best evaluation; repeat the run with --keep-best")
    result.save(target, best=best)
    size = f"{sum(p.numel() for p in result.model(best=best).parameters()):,} parameters"
    at = result.best.round if best else result.history[-1].round if result.history else 0
    out.print(escape(f"wrote {target}: {size} after round {at}"))
