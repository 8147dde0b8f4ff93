"""Small files in LEAF's format, for the readers' tests."""

import json


def write(path, data, *, listed=None, **more):
    """Write {user: (x, y)} as one LEAF JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(data) if listed is None else listed,
        "num_samples": [len(y) for _, y in data.values()],
        **more,
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
