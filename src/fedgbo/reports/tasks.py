"""The labels of a section's clients, where its task can be opened."""

from dataclasses import dataclass

from fedgbo.core.errors import FedGBOError
from fedgbo.reports.sections import Section
from fedgbo.reports.skew import Skew, label_skew


@dataclass(frozen=True, eq=False)
class Labels:
    """How labels are spread over clients, or why that is not known."""

    skew: Skew | None
    why_not: str = ""


def labels_of(section: Section, own_files: bool = False) -> Labels:
    """Open the section's task and count its labels.

    A task in a file of somebody's own is opened only with `own_files`: a run folder from elsewhere may name any file,
    and opening its task runs it.
    """
    config = section.lines[0].runs[0].config
    name = config.task["name"]
    if ":" in name and not own_files:
        return Labels(None, f"the task is {name}, a file of its own, which would be run; --own-tasks opens it")
    try:
        data = config.build_task().data
        if data.train.label_range() is None:
            return Labels(None, "the task has no classes")
        return Labels(label_skew(data))
    except (FedGBOError, OSError, TypeError, ValueError, MemoryError, OverflowError) as error:
        return Labels(None, f"the task cannot be opened here: {error}")
