"""States on the wire: exact, one copy, and refused unless they are just what was expected."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedgbo.core.errors import DataError
from fedgbo.core.state import State
from fedgbo.flower.wire import NormBounds, Update, from_record, to_record

STATE = State(torch.tensor([1.0, -2.5, 3e-8]), {"m": torch.tensor([0.0, 1.0, 2.0])})
PARAMS = STATE.params
LIKE = State(PARAMS)
GOOD = np.zeros(3, dtype=np.float32)


def read(array):
    return from_record(ArrayRecord({"params": array}), ["params"], LIKE)


def direct(data, dtype="float32", shape=(3,), stype="numpy.ndarray"):
    return Array(dtype, shape, stype, data)


def headed(text):
    """Twelve bytes of numbers under a header that says this."""
    return direct(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(12))


def described(descr):
    return headed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (3,)}}\n")


def test_there_and_back():
    back = from_record(to_record(STATE), ["params", "stats.m"], LIKE)
    assert back.tensors().keys() == STATE.tensors().keys()
    assert all(torch.equal(a, b) for a, b in zip(back.tensors().values(), STATE.tensors().values(), strict=True))


def test_it_is_flowers_own_format():
    """So an app of the user's own can read it, and write it."""
    record = to_record(STATE)
    assert record["params"].data == Array(STATE.params.numpy()).data
    assert (record["params"].numpy() == STATE.params.numpy()).all()


def test_it_is_read_in_the_memory_that_it_came_in():
    array = to_record(STATE)["params"]
    begin = np.frombuffer(array.data, np.uint8).ctypes.data
    assert begin < read(array).params.data_ptr() < begin + len(array.data)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (Array(np.zeros(4, np.float32)), r"shape \(4,\), not \(3,\)"),
        (Array(np.zeros(1, np.float32)), r"shape \(1,\)"),  # it would broadcast
        (Array(np.zeros((3, 1), np.float32)), r"shape \(3, 1\)"),
        (Array(np.zeros((), np.float32)), r"shape \(\)"),
        (Array(np.zeros(3, np.float64)), "type float64, not float32"),
        (Array(np.zeros(3, np.float16)), "type float16"),
        (Array(np.zeros(3, np.complex64)), "type complex64"),
        (direct(Array(GOOD).data, stype="pickle"), "coded as pickle"),
        (direct(b"garbage"), "not an npy array"),
        (direct(b""), "not an npy array"),
        (direct(Array(GOOD).data[:-1]), "11 bytes, not the 12"),
        (direct(Array(GOOD).data + b"\0"), "13 bytes"),
        (direct(Array(np.zeros(3, np.float64)).data), "its bytes are float64"),
        (direct(Array(np.zeros(6, np.float16)).data), "its bytes are float16"),
        (direct(Array(np.zeros(3, ">f4")).data), "its bytes are >f4"),
        (direct(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 900), "not an npy array"),
        (direct(b"\x93NUMPY\x02\x00" + bytes(100)), "npy version"),
        (headed("(" * 900), "not an npy array"),
        (headed("'" * 3 + "never closed"), "not an npy array"),
        (headed("-" * 900 + "1"), "not an npy array"),
        (headed("{[]: 1}"), "not an npy array"),
        (headed("{1: 2, 'a': 3}"), "not an npy array"),
        (described("()"), "not an npy array"),
        (described("('<f4',)"), "not an npy array"),
        (described([("x" * 500, "<f4")]), r"its bytes are .{80}\.\.\.$"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_as_expected_is_refused(array, reason):
    with pytest.raises(DataError, match=reason):
        read(array)


def test_a_statistic_may_be_one_number_only_where_that_is_said():
    record = to_record(State(PARAMS, {"t": torch.tensor([7.0])}))
    back = from_record(record, ["params", "stats.t"], LIKE, numbers=True)
    assert back.stats["t"].tolist() == [7.0]
    with pytest.raises(DataError, match=r"stats.t has shape \(1,\), not \(3,\)"):
        from_record(record, ["params", "stats.t"], LIKE)
    with pytest.raises(DataError, match=r"params has shape \(1,\), not \(3,\)"):
        from_record(ArrayRecord({"params": Array(np.zeros(1, np.float32))}), ["params"], LIKE, numbers=True)
    with pytest.raises(DataError, match=r"stats.t has shape \(2,\), not \(3,\) or \(1,\)"):
        from_record(to_record(State(PARAMS, {"t": torch.zeros(2)})), ["params", "stats.t"], LIKE, numbers=True)


def test_vectors_of_other_lengths_than_those_of_most_are_outliers():
    updates = {
        client: Update(State(PARAMS, {"h": torch.ones(length)}), 0.1, 5, None)
        for client, length in enumerate((1, 1, 3))
    }  # fmt: skip
    bounds = NormBounds(factor=0, largest=0)
    assert bounds.outliers(updates, torch.ones(3)) == {2: "its vectors have the lengths (3, 3), most others (3, 1)"}


def test_an_array_of_objects_is_never_unpickled():
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil(), None, None]), allow_pickle=True)
    with pytest.raises(DataError, match="object"):
        read(direct(buffer.getvalue()))


def test_missing_and_extra_vectors_are_refused():
    with pytest.raises(DataError, match=r"lacks stats\.m; it must be params, stats\.m"):
        from_record(to_record(State(PARAMS)), ["params", "stats.m"], LIKE)
    with pytest.raises(DataError, match=r"has an extra stats\.m"):
        from_record(to_record(STATE), ["params"], LIKE)


def test_what_comes_from_outside_cannot_fill_or_fake_a_log():
    record = ArrayRecord({"params": Array(GOOD), "x\nINFO all is well " + "y" * 500: Array(GOOD)})
    with pytest.raises(DataError) as error:
        from_record(record, ["params"], LIKE)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_one_accepted_update_does_not_lower_the_bound_for_the_others():
    """A hostile client of two, in a round that the other missed: its tiny update would have shut the other out."""

    def updates(**norms):
        return {int(c[1:]): Update(State(torch.tensor([norm])), 1.0, 1, None) for c, norm in norms.items()}

    bounds, model = NormBounds(factor=100.0, largest=1e6), torch.ones(1)
    for accepted in (updates(c0=1.0, c1=1e-9), updates(c1=1e-9)):
        assert bounds.outliers(accepted, model) == {}
        bounds.accept(accepted)
    assert bounds.outliers(updates(c0=1.0, c1=1e-9), model) == {}
    bounds.accept(updates(c0=1e-3, c1=1e-3))  # the norms of both shrink, and the bound with them
    assert set(bounds.outliers(updates(c0=1e-3, c1=1.0), model)) == {1}
