"""Small files in the formats of TensorFlow Federated, for the readers' tests."""

import sqlite3

import h5py


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    """Return a length-delimited field of a protocol buffer message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features):
    """Serialize a tf.train.Example whose features are lists of byte strings."""
    entries = b""
    for name, values in features.items():
        listed = b"".join(field(1, value) for value in values)
        entries += field(1, field(1, name.encode()) + field(2, field(1, listed)))
    return field(1, entries)


def write_sqlite(path, halves):
    """Write {split: {client: [snippet, ...]}} with the tables of tff.simulation.datasets.SqlClientData."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, clients in halves.items():
            for client, snippets in clients.items():
                rows = [(split, client, example(snippets=[snippet])) for snippet in snippets]
                database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
                database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))
    database.close()
    return path


def write_hdf5(folder, halves):
    folder.mkdir(exist_ok=True)
    for split, clients in halves.items():
        with h5py.File(folder / f"shakespeare_{split}.h5", "w") as file:
            for client, snippets in clients.items():
                group = file.create_group(f"examples/{client}")
                group.create_dataset("snippets", data=snippets, dtype=h5py.string_dtype())
    return folder
