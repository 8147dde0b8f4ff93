"""What a comparison came to, in a sentence."""

from collections.abc import Sequence

from fedgbo.reports.summary import Row


def conclusion(rows: Sequence[Row]) -> list[str]:
    """Say what was measured of FedGBO against FedAvg."""
    baseline = next((row for row in rows if row.label == "fedavg"), None)
    ours = [row for row in rows if row.label.startswith("fedgbo")]
    if baseline is None or not ours:
        return []
    lines = []
    best = f"FedAvg's best accuracy ({baseline.accuracy:.1%}, round {baseline.best.round})"
    for row in ours:
        if row.match is None:
            lines.append(f"{row.label} did not reach {best}.")
        elif not row.match.round:
            lines.append(f"{row.label} had {best} before the first round.")
        else:
            ratio = baseline.best.round / row.match.round
            upload = baseline.best.upload_bytes / row.match.upload_bytes
            lines.append(
                f"{row.label} reached {best} at round {row.match.round}: "
                f"{ratio:.1f}x fewer rounds, {upload:.1f}x less upload."
            )
    return lines
