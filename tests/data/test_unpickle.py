import io
import os
import pickle
import struct

import numpy as np
import pytest

from fedgbo.core.errors import DataError
from fedgbo.data.unpickle import load_plain

DATA = np.arange(24, dtype=np.uint8).reshape(4, 6)


def load(content):
    return load_plain(io.BytesIO(content), "here/train")


def python2(data, *, module=b"numpy.core.multiarray"):
    """A pickle as Python 2 and the numpy of its day wrote it: byte strings, protocol 2."""
    return (
        b"\x80\x02}(U\x04datac" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([data.shape[0]]) + b"K" + bytes([data.shape[1]]) + b"\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
        b"U\x06labels](K\x01K\x02eu."
    )


class Evil:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol(protocol):
    loaded = load(pickle.dumps({"data": DATA, "wide": np.array([1, -2]), "labels": [3, 4], "n": ["a"]}, protocol))
    np.testing.assert_array_equal(loaded["data"], DATA)
    assert loaded["data"].dtype == np.uint8
    assert loaded["wide"].tolist() == [1, -2]
    assert (loaded["labels"], loaded["n"]) == ([3, 4], ["a"])


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_python_2_and_both_names_of_numpys_core(module):
    loaded = load(python2(DATA, module=module))
    np.testing.assert_array_equal(loaded["data"], DATA)
    assert loaded["labels"] == [1, 2]


@pytest.mark.parametrize("protocol", [2, 5])
def test_fortran_order_and_foreign_byte_order(protocol):
    content = {"f": np.asfortranarray(DATA), "b": np.array([1, 258], dtype=">i4")}
    loaded = load(pickle.dumps(content, protocol))
    np.testing.assert_array_equal(loaded["f"], DATA)
    assert loaded["b"].tolist() == [1, 258]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.system, eval, np.load, getattr])
def test_calls_are_refused_and_not_made(tmp_path, call, protocol):
    trace = tmp_path / "trace"
    args = {os.system: (f"touch {trace}",), eval: (f"open({str(trace)!r}, 'w')",), np.load: (str(trace),)}
    content = pickle.dumps({"data": Evil(call, *args.get(call, (1, "real")))}, protocol)
    with pytest.raises(DataError, match=r"here/train wants to call .* nothing was run"):
        load(content)
    assert not trace.exists()


def test_the_same_pickle_does_run_when_it_is_trusted(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Evil(os.system, f"touch {trace}")))
    assert trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nndarray\n}U\x04evilK\x01sb.",  # state for a stand-in itself
        b"cnumpy\ndtype\n(N}U\x0c__defaults__K\x01stb.",
        b"cnumpy\nndarray\n)\x81.",  # numpy.ndarray as a class to build
        b"cnumpy\nndarray\n)R.",
        b"\x80\x02\x8c\x05bytesQ.",  # a persistent id
        b"\x82\x01.",  # an extension code
        b"c_codecs\nencode\nU\x01aU\x03zip\x86R.",
    ],
)
def test_tricks_with_what_is_admitted_fail(content):
    with pytest.raises(DataError, match="here/train"):
        load(content)
    np.testing.assert_array_equal(load(pickle.dumps({"data": DATA}, 2))["data"], DATA)  # and leave nothing behind


def test_cut_short_anywhere():
    for content in (python2(DATA), pickle.dumps({"data": DATA, "labels": [1, 2]}, 5)):
        for end in range(len(content)):
            with pytest.raises(DataError, match=r"here/train cannot be read as a pickle of arrays"):
                load(content[:end])


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"not a pickle at all", b"\x89HDF\r\n\x1a\n"])
def test_other_files(content):
    with pytest.raises(DataError, match=r"here/train cannot be read as a pickle"):
        load(content)


def test_not_a_dictionary():
    with pytest.raises(DataError, match="is a pickled list, where a dictionary is needed"):
        load(pickle.dumps([1, 2]))


def test_names_must_be_text():
    with pytest.raises(DataError, match="int in place of a name"):
        load(pickle.dumps({1: 2}))


@pytest.mark.parametrize("array", [np.array([0.5]), np.array([True]), np.array(["a"])])
def test_arrays_of_other_things(array):
    with pytest.raises(DataError, match="here/train: data is an array of values other than whole numbers"):
        load(pickle.dumps({"data": array}))


def test_arrays_of_objects():
    with pytest.raises(DataError, match="here/train"):
        load(pickle.dumps({"data": np.array([{}, None], dtype=object)}))


def test_an_array_that_declares_more_than_it_has():
    content = python2(DATA).replace(b"K\x04K\x06", b"K\x04K\xff")
    with pytest.raises(DataError, match=r"data has 24 bytes for an array of shape \(4, 255\)"):
        load(content)


def test_an_array_without_content():
    with pytest.raises(DataError, match="without a proper shape or content"):
        load(python2(DATA).replace(b"K\x04K\x06\x86", b"NN\x86"))
