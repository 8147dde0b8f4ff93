from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedgbo.core.random import name_of, permutation
from fedgbo.engines import sparse_kernel
from fedgbo.engines.plain import minibatches
from fedgbo.engines.sparse_kernel import geometric
from fedgbo.engines.sparse_walk import mixed, shuffle
from fedgbo.engines.plain import walk


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 23, 24, 25, 64, 1000])
def test_orders_are_those_of_the_named_streams(seed, size):
    for key in [(0, 0, 0), (3, 21_875, 0), (4999, 7, 12), (2**40, 2**33, 1)]:
        order, keys = np.empty(size, np.int64), np.empty(size, np.uint64)
        shuffle(np.uint64(name_of(seed, "batches", *key)), order, keys)
        assert order.tolist() == permutation(size, seed, "batches", *key).tolist()


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (1, 8), (3, 8), (5, 2), (8, 8), (20, 8), (100, 7)])
def test_walks_wrap_round_as_minibatches_do(size, batch):
    name = mixed(np.uint64(name_of(3, "batches", 11)) ^ np.uint64(4))
    batches = minibatches(size, batch, 3, 11, 4)
    expected = np.concatenate([next(batches) for _ in range(40)])
    assert walk(name, size, 0, 40 * batch).tolist() == expected.tolist()
    assert walk(name, size, 3 * batch, 5 * batch).tolist() == expected[3 * batch : 8 * batch].tolist()


@pytest.mark.parametrize("ratio", [1.0, 0.0, -1.0, 0.5, 1 - 1e-12, 1.5, -0.3])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 37])
def test_geometric_sums(ratio, count):
    power, total = geometric(ratio, count)
    assert power == pytest.approx(ratio**count, rel=1e-14)
    assert total == pytest.approx(sum(ratio**i for i in range(count)), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "compiled_in"),
    [
        ("sparse_kernel", ["sparse_arrays", "sparse_walk"]),
        ("sparse_score", ["sparse_arrays"]),
        ("sparse_rounds", ["sparse_arrays", "sparse_walk", "sparse_kernel"]),
    ],
)
def test_a_change_of_a_kernel_changes_the_files_that_it_is_compiled_into(name, compiled_in):
    """numba's cache on disk looks at a function's own file alone: so each file names what it was last compiled with."""
    here = Path(sparse_kernel.__file__).parent
    digest = sha256(b"".join((here / f"{other}.py").read_bytes() for other in compiled_in)).hexdigest()[:16]
    assert f"# with {digest}" in (here / f"{name}.py").read_text(), f"write '# with {digest}' into {name}.py"
