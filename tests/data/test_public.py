import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.public import ClientRules, choose_clients, one_class, pick_format

FORMATS = {"csv": "a table", "leaf": "train and test files"}


def test_a_format_is_found_given_or_refused(tmp_path):
    assert pick_format(tmp_path, ["b", "a"], FORMATS, ["leaf"], None) == "leaf"
    assert pick_format(tmp_path, ["b", "a"], FORMATS, ["csv", "leaf"], "csv") == "csv"
    with pytest.raises(DataError, match="has files of several formats: csv, leaf; choose one with --format"):
        pick_format(tmp_path, ["b", "a"], FORMATS, ["csv", "leaf"], None)
    with pytest.raises(
        DataError, match=r"of a known format: it has a, b, and needs: a table \(csv\); train and test files \(leaf\)"
    ):
        pick_format(tmp_path, ["b", "a"], FORMATS, [], None)
    with pytest.raises(DataError, match=r"has no files of csv: it has a, b, and needs: a table \(csv\)$"):
        pick_format(tmp_path, ["b", "a"], FORMATS, ["leaf"], "csv")
    with pytest.raises(ConfigError, match="unknown format 'lefa'; did you mean 'leaf'"):
        pick_format(tmp_path, ["b", "a"], FORMATS, ["leaf"], "lefa")


def test_users_with_both_halves_in_the_order_of_train():
    kept = choose_clients({"b": 2, "a": 3}, {"a": 1, "b": 1}, ClientRules(), "here")
    assert (kept.train, kept.test, kept.notes) == (("b", "a"), ("b", "a"), ())


@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        (
            {"a": 1, "b": 1},
            {"a": 1},
            r"here: user 'b' has train samples but no test samples \(1 such users\); train and",
        ),
        ({"a": 1}, {"a": 1, "c": 1}, "user 'c' has test samples but no train samples .* --drop-incomplete"),
        ({"a": 1, "b": 0}, {"a": 1, "b": 0}, r"user 'b' has no samples \(1 such users\)"),
        ({"a": 1, "b": 0}, {"a": 1, "b": 4}, r"user 'b' has test samples but no train samples"),
        ({"a": 1}, {"b": 1}, "if these files were split by user, add -t user"),
    ],
)
def test_incomplete_users_are_named_or_left_out(train, test, match):
    with pytest.raises(DataError, match=match):
        choose_clients(train, test, ClientRules(), "here")
    if set(train) & set(test):
        kept = choose_clients(train, test, ClientRules(drop_incomplete=True), "here")
        assert kept.train == kept.test == ("a",)
        assert kept.notes[0].startswith("left out: 1 users without train or test samples (")


def test_few_samples():
    kept = choose_clients({"a": 3, "b": 4}, {"a": 1, "b": 1}, ClientRules(min_samples=5), "here")
    assert kept.train == ("b",)
    assert kept.notes == ("left out: 1 users with fewer than 5 samples (4 samples)",)
    with pytest.raises(DataError, match="here: no user with at least 9 samples is left for training"):
        choose_clients({"a": 3}, {"a": 1}, ClientRules(min_samples=9), "here")
    with pytest.raises(ConfigError, match="min_samples must be a whole number of at least 1, not 0"):
        ClientRules(min_samples=0)


def test_a_split_by_user():
    rules = ClientRules(by_user=True)
    kept = choose_clients({"a": 3, "b": 4}, {"c": 1}, rules, "here")
    assert (kept.train, kept.test) == (("a", "b"), ("c",))
    assert kept.notes == ("train and test have different users: 2 and 1",)
    with pytest.raises(DataError, match=r"user 'b' has train and test samples \(1 such users\); .* leave out -t user"):
        choose_clients({"a": 3, "b": 4}, {"b": 1}, rules, "here")
    with pytest.raises(DataError, match="no user is left for testing"):
        choose_clients({"a": 3}, {}, rules, "here")


def test_one_class_is_a_warning():
    arrays = {"train_labels": np.full(1200, 3, np.uint8), "test_labels": np.array([1, 2])}
    told = "warning: all 1,200 train samples have the label 3; there are no classes to distinguish"
    assert one_class(arrays) == [told]
    assert one_class({"text": np.zeros(3)}) == []
