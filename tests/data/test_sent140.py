import csv
import io
import zipfile
from collections import Counter

import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.public import ClientRules
from fedgbo.data.sent140 import read_sent140, sparse_data

from .leaf_samples import write

RNG = np.random.default_rng(1)
WORDS = ["sad", "happy", "the", "a", "Lunch", "café", "naïve", "&quot;hi", "x,y"]


def tweets(users=6):
    """(polarity, user, text): users take turns; user k has 8 + 2 k tweets, so user 0 has too few."""
    made = []
    for turn in range(8 + 2 * users):
        for k in range(users):
            if turn < 8 + 2 * k:
                good = int(RNG.integers(2))
                words = [WORDS[good], *RNG.choice(WORDS[2:], size=RNG.integers(1, 8)), f"rare{len(made)}"]
                made.append((4 * good, f"user{k}", " ".join(words) + " " * int(RNG.integers(3))))
    return made


TWEETS = tweets()


def table(made, encoding=lambda k, text: text.encode("latin-1" if k % 2 else "utf-8")):
    lines = []
    for k, (polarity, user, text) in enumerate(made):
        line = io.StringIO()
        row = [polarity, 1000 + k, "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
        lines.append(encoding(k, line.getvalue()))
    return b"".join(lines)


def rows(arrays, half):
    """{user: [(label, {token: count})]} of a packed half."""
    words, found = arrays["vocabulary"], {}
    indptr, indices, counts = (arrays[f"{half}_{name}"] for name in ("indptr", "indices", "counts"))
    for c, user in enumerate(arrays["client_names"].tolist()):
        for r in range(*arrays[f"{half}_offsets"][c : c + 2]):
            bag = Counter()
            for at in range(indptr[r], indptr[r + 1]):
                bag[str(words[indices[at]])] += int(counts[at])
            found.setdefault(user, []).append((int(arrays[f"{half}_labels"][r]), bag))
    return found


def expected(made, words):
    """The same from the texts, all tweets of a user together."""
    found = {}
    for polarity, user, text in made:
        bag = Counter(token for token in text.split() if token in words)
        if bag:
            found.setdefault(user, []).append((polarity // 4, bag))
    return found


def comparable(samples):
    return sorted((label, sorted(bag.items())) for label, bag in samples)


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "training.1600000.processed.noemoticon.csv").write_bytes(table(TWEETS))
    return tmp_path


def test_csv_keeps_every_tweet_of_users_with_ten(raw):
    arrays = read_sent140(raw).arrays
    train, test = rows(arrays, "train"), rows(arrays, "test")
    wanted = expected(TWEETS, set(arrays["vocabulary"].tolist()) | set())
    assert list(arrays["client_names"]) == [f"user{k}" for k in range(1, 6)]
    for k in range(1, 6):
        user, n = f"user{k}", 8 + 2 * k
        assert len(train[user]) == int(0.8 * n)
        assert comparable(train[user] + test[user]) == comparable(wanted[user])
    assert {"café", "naïve"} <= set(arrays["vocabulary"].tolist())  # in latin-1 lines and in UTF-8 ones


def test_types_are_small_and_meta_says_what_it_is(raw):
    packed = read_sent140(raw, seed=4)
    kinds = {name: str(array.dtype) for name, array in packed.arrays.items()}
    assert kinds["train_indptr"] == kinds["train_offsets"] == "int64"
    assert kinds["train_indices"] == "uint16"
    assert kinds["test_counts"] == kinds["test_labels"] == "uint8"
    meta = {"task": "sent140", "source": str(raw), "synthetic": False, "features": 5000, "format": "csv", "seed": 4}
    assert packed.meta == meta


def test_split_is_by_seed(raw):
    first, again, other = (read_sent140(raw, seed=s).arrays for s in (0, 0, 1))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert comparable(rows(first, "test")["user5"]) != comparable(rows(other, "test")["user5"])


def test_vocabulary_is_of_the_training_tweets_with_ties_in_alphabetical_order(tmp_path):
    sample = lambda text: [1, "date", "q", "u", text, "more"]  # noqa: E731
    train = {"u": ([sample("b b a"), sample("c a zz"), sample("dd")], [0, 1, 0])}
    test = {"u": ([sample("q q q q q b"), sample("q")], [1, 1])}
    write(tmp_path / "train" / "all.json", train)
    write(tmp_path / "test" / "all.json", test)
    packed = read_sent140(tmp_path, features=3)
    arrays = packed.arrays
    assert arrays["vocabulary"].tolist() == ["a", "b", "c"]
    assert rows(arrays, "train") == {"u": [(0, {"b": 2, "a": 1}), (1, {"c": 1, "a": 1})]}
    assert rows(arrays, "test") == {"u": [(1, {"b": 1}), (1, {})]}
    assert packed.notes == (
        "left out: 1 training tweets without a known word",
        "kept: 1 test tweets without a known word",
    )
    x, _ = sparse_data(arrays, "here").test.batch(np.array([1, 0]))
    assert x.tolist() == [[[0.0, 0.0]], [[1.0, 1.0]]]  # feature 1, "b", with all the weight; and nothing


def test_users_without_a_training_tweet_left_are_dropped(tmp_path):
    def sample(text):
        return ([[1, "d", "q", "u", text]], [1])

    write(tmp_path / "train" / "all.json", {"a": sample("x x"), "b": sample("y"), "c": sample("x")})
    write(tmp_path / "test" / "all.json", {"a": sample("y"), "b": sample("x"), "c": sample("x")})
    packed = read_sent140(tmp_path, features=1)
    arrays = packed.arrays
    assert packed.notes[0] == "left out: 1 training tweets without a known word, and so 1 users"
    assert arrays["client_names"].tolist() == ["a", "c"]
    assert arrays["train_offsets"].tolist() == [0, 1, 2]
    assert arrays["test_offsets"].tolist() == [0, 1, 2]
    assert (len(arrays["train_labels"]), len(arrays["test_labels"])) == (2, 2)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    "header", [b"", b"target,ids,date,flag,user,text\n", b'"Polarity","id","date","q","u","text"\r\n']
)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_headers_byte_order_marks_and_line_ends_do_not_matter(raw, tmp_path, bom, header, ends):
    wanted = read_sent140(raw).arrays
    (tmp_path / "other.csv").write_bytes(bom + header + table(TWEETS).replace(b"\n", ends))
    found = read_sent140(tmp_path / "other.csv").arrays
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_users_by_their_number_of_tweets(raw):
    packed = read_sent140(raw, rules=ClientRules(min_samples=15))
    assert packed.arrays["client_names"].tolist() == ["user4", "user5"]
    assert packed.notes[0] == "left out: 4 users with fewer than 15 tweets (44 tweets)"
    with pytest.raises(DataError, match="has no user with at least 99 tweets"):
        read_sent140(raw, rules=ClientRules(min_samples=99))


def test_users_for_training_and_others_for_testing(raw):
    packed = read_sent140(raw, rules=ClientRules(by_user=True))
    names = packed.arrays["client_names"].tolist()
    assert len(names) == 4  # of five
    assert "train and test have different users: 4 and 1" in packed.notes
    (other,) = {f"user{k}" for k in range(1, 6)} - set(names)
    assert len(packed.arrays["test_labels"]) == sum(user == other for _, user, _ in TWEETS)


def test_two_formats_are_not_guessed_between(raw):
    for half in ("train", "test"):
        write(raw / half / "all.json", {"u": ([[1, "d", "q", "u", "x"]], [1])})
    with pytest.raises(DataError, match="has files of several formats: csv, leaf; choose one with --format"):
        read_sent140(raw)
    assert read_sent140(raw, format="leaf").arrays["client_names"].tolist() == ["u"]


def test_the_training_file_is_taken_from_the_public_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "trainingandtestdata.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("training.1600000.processed.noemoticon.csv", table(TWEETS))
        archive.writestr("testdata.manual.2009.06.14.csv", table([(2, "bob", "neutral")]))
    assert len(read_sent140(tmp_path / "trainingandtestdata.zip").arrays["client_names"]) == 5


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"a\.csv is empty"),
        (table(TWEETS)[:-5], rf"a\.csv ends in the middle of line {len(TWEETS)}: cut short"),
        (table(TWEETS[:-1]) + table(TWEETS[-1:])[:60], r"a\.csv, line \d+: 5 columns, expected 6"),
        (table([(2, "bob", "so so")]), r"a\.csv, line 1: the polarity is '2', expected 0 or 4"),
        (b"a,b,c,d,e,f\n" + table(TWEETS), r"line 1: the polarity is 'a', expected 0 or 4"),
        (table(TWEETS).decode("latin-1").encode("utf-16"), r"a\.csv is in UTF-16; convert it to UTF-8 first"),
        (table(TWEETS[:3]) + b'"0","1","date"\n', r"line 4: 3 columns, expected 6 \(polarity, id, date, query, user"),
        (table(TWEETS[:3]), "has no user with at least 10 tweets"),
        (table(TWEETS[:3]) + b'"0","1","d","q","u","' + b"x" * 200_000, r"line \d+: field larger"),
    ],
)
def test_wrong_tables_name_the_line(tmp_path, content, match):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=match):
        read_sent140(tmp_path)


def test_one_file_is_taken_whatever_its_name(tmp_path):
    (tmp_path / "tweets.txt").write_bytes(table(TWEETS))
    assert len(read_sent140(tmp_path / "tweets.txt").arrays["client_names"]) == 5


def test_several_tables(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(table(TWEETS))
    with pytest.raises(DataError, match=r"has several CSV files: a\.csv, b\.csv; give the path of one"):
        read_sent140(tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (["just text"], [1], "user 'u' in .*all.json: sample 0 is not"),
        ([[1, 2, 3, 4]], [1], "user 'u' in .*all.json: sample 0 is not"),
        ([[1, 2, 3, 4, "ok"], [1, 2, 3, 4, "ok"]], [1, 4], "sample 1 has the label 4; Sent140's are 0 and 1"),
    ],
)
def test_wrong_leaf_samples_are_named(tmp_path, x, y, match):
    for half in ("train", "test"):
        write(tmp_path / half / "all.json", {"u": (x, y)})
    with pytest.raises(DataError, match=match):
        read_sent140(tmp_path)


def test_features_must_fit_their_type(tmp_path):
    with pytest.raises(ConfigError, match="features must be at most 65536"):
        read_sent140(tmp_path, features=70_000)


def test_damaged_arrays_are_not_passed_on_to_native_code(raw):
    arrays = read_sent140(raw).arrays
    for name, array, match in [
        ("train_indices", np.full_like(arrays["train_indices"], 5000), "rows or features out of range"),
        ("test_indptr", arrays["test_indptr"][::-1].copy(), "rows or features out of range"),
        ("train_counts", arrays["train_counts"].astype(np.int64), "not in the store's types"),
        ("train_labels", arrays["train_labels"][:, None], "not in the store's types"),
    ]:
        with pytest.raises(DataError, match=f"here: the {name.split('_')[0]} tweets .*{match}; pack the data again"):
            sparse_data({**arrays, name: array}, "here")


def test_blank_lines_are_skipped(raw, tmp_path):
    (tmp_path / "blank.csv").write_bytes(table(TWEETS).replace(b"\n", b"\n\n"))
    assert read_sent140(tmp_path / "blank.csv").arrays["client_names"].tolist() == [f"user{k}" for k in range(1, 6)]
