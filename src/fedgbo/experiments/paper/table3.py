"""Table 3: the tasks."""

from fedgbo.experiments.paper.published import PaperTask, rows, tasks
from fedgbo.reports.table import Cell, Table


def table3() -> Table:
    """The four tasks, their models and clients."""
    printed = {row["Task"]: row for row in rows("table3")}
    columns = tuple(next(iter(printed.values())))
    return Table(
        name="table3",
        title="Table 3: tasks and models",
        columns=(*columns, "Batch size B", "Parameters |x|", "Multiply-adds F"),
        rows=tuple(_row(task, printed[task.title]) for task in tasks().values()),
        remarks=("B is from the paper's Section 5; |x| and F follow from the models and are not printed.",),
    )


def _row(task: PaperTask, printed: dict[str, str]) -> tuple[Cell, ...]:
    ours = (
        task.title,
        task.type,
        str(task.classes),
        task.model,
        str(task.clients),
        str(task.clients_per_round),
        str(task.mean_samples),
    )
    compared = [Cell.compared(value, said) for value, said in zip(ours, printed.values(), strict=True)]
    sizes = (task.batch_size, task.params, task.macs)
    return Cell(task.title), *compared[1:], *(Cell(f"{size:,}", exact=size) for size in sizes)
