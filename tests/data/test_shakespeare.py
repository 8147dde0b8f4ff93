import lzma

import numpy as np
import pytest

from fedgbo.core.errors import ConfigError, DataError
from fedgbo.data.public import ClientRules
from fedgbo.data.samples import WindowSamples
from fedgbo.data.shakespeare import VOCABULARY, decode, read_shakespeare, speakers

from .leaf_samples import write

SAY = "The quick brown fox jumps over the lazy dog and runs away."


def play(title, lines):
    return ["1603", "", title, "", "", "by William Shakespeare", "", "", *lines]


def raw(*plays, lines=124_197):
    """A text as Gutenberg has it: a line to drop, a play that is skipped, then the others."""
    skipped = play("THE FIRST", [*speech("Ann", 3), *speech("Bob", 3)])
    text = ["first line", *skipped, *[""] * 8, *(line for each in plays for line in each)]
    return "\n".join([*text, *[""] * (lines - len(text))])


def speech(name, count, indent="  "):
    return [f"{indent}{name}. {SAY}", *[f"    {SAY}"] * (count - 1)]


def two(lines):
    return play("A PLAY", [*lines, *speech("Other", 3)])


def test_speech_continues_over_other_lines_until_the_next_speaker():
    lines = [
        "  Ham. To be,   or not",
        "    to be",
        "                    Exit",
        " SCENE II.",
        "    that  is",
        "  Hor. Ay.",
    ]
    texts = speakers(raw(two(lines)), "raw")
    assert texts["A_PLAY_HAM"] == "To be, or not to be Exit that is "
    assert "A_PLAY_HOR" not in texts  # one snippet is too few
    assert set(texts) == {"A_PLAY_HAM", "A_PLAY_OTHER"}


def test_names_are_upper_case_words_with_underscores():
    texts = speakers(
        raw(play("ALL'S  WELL", [*speech("First Lord", 3), *speech("b", 3), "  2nd. No.", "    x"])), "raw"
    )
    assert set(texts) == {"ALL_S__WELL_FIRST_LORD", "ALL_S__WELL_B"}
    assert texts["ALL_S__WELL_B"] == f"{SAY} {SAY} {SAY} x "  # "2nd." is no name, so the next line is still b's


def test_plays_with_one_speaker_and_the_first_one_are_left_out():
    texts = speakers(raw(play("LONELY", speech("Ann", 5)), two([]), two(speech("Bob", 3))), "raw")
    assert set(texts) == {"A_PLAY_BOB", "A_PLAY_OTHER"}


def test_a_new_play_has_no_current_speaker():
    texts = speakers(raw(two([]), play("NEXT", ["    lost", *speech("Ann", 3), *speech("Bob", 3)])), "raw")
    assert "lost" not in "".join(texts.values())


def test_title_is_the_nearest_line_above():
    lines = ["A", "THE TITLE", "", "", "by me", "by William Shakespeare", *speech("Ann", 3), *speech("Bob", 3)]
    assert set(speakers(raw(lines), "raw")) == {"THE_TITLE_ANN", "THE_TITLE_BOB"}


def test_comedy_of_errors_has_rules_of_its_own():
    lines = [
        *("ANN. One", "two", "  three", "<<LICENCE>>", "four", "BOB. five", "six", "seven"),
        *("ACT II. The mart", "eight", "no one's", "no one's", "ANN. nine"),
    ]
    assert speakers(raw(play("THE COMEDY OF ERRORS", lines)), "raw") == {
        "THE_COMEDY_OF_ERRORS_ANN": "One two three nine ",
        "THE_COMEDY_OF_ERRORS_BOB": "five six seven ",
    }


def split(tmp_path, count, **options):
    (tmp_path / "raw.txt").write_text(raw(two(speech("Ann", count))))
    return read_shakespeare(tmp_path / "raw.txt", **options)


def test_first_windows_train_last_windows_test_and_the_overlap_is_left_out(tmp_path):
    arrays = split(tmp_path, 20).arrays
    said = f"{SAY} " * 20
    n = len(said) - 80
    t = int(0.9 * n)
    assert arrays["client_names"].tolist() == ["A_PLAY_ANN"]  # the other speaker's text is too short for both parts
    assert decode(arrays["text"]) == said
    train = WindowSamples(arrays["text"], arrays["train_starts"], arrays["train_counts"])
    test = WindowSamples(arrays["text"], arrays["test_starts"], arrays["test_counts"])
    assert (len(train), len(test)) == (t, n - t - 79)
    assert arrays["train_offsets"].tolist() == [0, t]
    for samples, first in ((train, 0), (test, t + 79)):
        x, y = samples.batch(np.arange(len(samples)))
        for i in range(len(samples)):
            assert decode(x[i].numpy()) == said[first + i : first + i + 80]
            assert VOCABULARY[y[i]] == said[first + i + 80]


def test_fraction_is_an_option(tmp_path):
    packed = split(tmp_path, 20, fraction=0.8)
    assert packed.arrays["train_counts"].tolist() == [int(0.8 * (20 * len(SAY) + 20 - 80))]
    assert packed.meta["fraction"] == 0.8
    with pytest.raises(ConfigError, match="fraction must be between 0 and 1, not 1"):
        split(tmp_path, 20, fraction=1)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (raw(two(speech("Ann", 20)), lines=5000), r"raw\.txt has 4999 lines after the first, and 124196 are needed"),
        ("", r"raw\.txt is empty"),
        ("hello\n" * 10, r"raw\.txt has 0 lines with 'by William Shakespeare'"),
        (raw(two([])), "has no speaker with enough text at the fraction 0.9"),
        (
            raw(two([*speech("Ann", 20), "    A f*x"])),
            r"speaker A_PLAY_ANN: '\*' after '.*away\. A f' is none of the 79",
        ),
        (raw(two([*speech("Ann", 20), "    A f€x"])), "speaker A_PLAY_ANN: .* is none of the 79 characters"),
    ],
)
def test_wrong_texts_are_named(tmp_path, text, match):
    (tmp_path / "raw.txt").write_text(text)
    with pytest.raises(DataError, match=match):
        read_shakespeare(tmp_path / "raw.txt")


def cut(text):
    return [text[i : i + 80] for i in range(len(text) - 80)], list(text[80:])


def json_folder(folder, train, test):
    for role, data in (("train", train), ("test", test)):
        write(folder / f"all_data_niid_0_keep_0_{role}_9.json", data)
    return folder


def test_json_gives_the_samples_of_the_raw_text(tmp_path):
    said = f"{SAY} " * 20
    t = int(0.9 * (len(said) - 80))
    folder = json_folder(tmp_path / "json", {"u": cut(said[: t + 80])}, {"u": cut(said[t + 79 :])})
    packed, ours = read_shakespeare(folder), split(tmp_path, 20)
    assert packed.meta["fraction"] is None
    for role in ("train", "test"):
        batches = []
        for arrays in (packed.arrays, ours.arrays):
            samples = WindowSamples(arrays["text"], arrays[f"{role}_starts"], arrays[f"{role}_counts"])
            batches.append(samples.batch(np.arange(len(samples))))
        assert batches[0][0].equal(batches[1][0])
        assert batches[0][1].equal(batches[1][1])


def test_json_with_windows_that_do_not_overlap_keeps_every_sample(tmp_path):
    x, y = cut(f"{SAY} " * 5)
    keep = [0, 1, 2, 50, 51, 7, 30]  # two runs, and two windows alone
    some = ([x[i] for i in keep], [y[i] for i in keep])
    some[1][0] = "!"  # not the last character of the next window: these two do not belong together either
    test = ([x[9]], [y[9]])
    arrays = read_shakespeare(json_folder(tmp_path, {"a": some, "b": test}, {"b": some, "a": test})).arrays
    assert arrays["train_counts"].tolist() == [1, 2, 2, 1, 1, 1]
    assert arrays["train_offsets"].tolist() == [0, 7, 8]
    assert arrays["test_offsets"].tolist() == [0, 1, 8]
    for role, k in (("train", 1), ("test", -1)):
        samples = WindowSamples(arrays["text"], arrays[f"{role}_starts"], arrays[f"{role}_counts"])
        windows, targets = samples.batch(np.arange(8))
        first, second = (some, test)[::k]
        assert [decode(row.numpy()) for row in windows] == [*first[0], *second[0]]
        assert decode(targets.numpy()) == "".join([*first[1], *second[1]])


def test_json_with_other_samples_is_named(tmp_path):
    bad = (["x" * 80, "x" * 79], ["y", "y"])
    with pytest.raises(DataError, match=r"user 'u' in .*train_9\.json: sample 1 is not 80 characters and the next one"):
        read_shakespeare(json_folder(tmp_path, {"u": bad}, {"u": bad}))


def test_the_raw_text_split_by_user(tmp_path):
    (tmp_path / "a.txt").write_text(raw(two(speech("Ann", 20) + speech("Bob", 9) + speech("Cid", 9))))
    rules = ClientRules(by_user=True)
    packed = read_shakespeare(tmp_path, 0.7, rules=rules)
    assert packed.notes == ("train and test have different users: 2 and 2",)
    halves = [set(read_shakespeare(tmp_path, 0.7, rules=rules, seed=seed).arrays["client_names"]) for seed in range(9)]
    assert set().union(*halves) == {f"A_PLAY_{name}" for name in ("ANN", "BOB", "CID", "OTHER")}
    assert len({frozenset(half) for half in halves}) > 1
    assert packed.arrays["train_offsets"][-1] + packed.arrays["test_offsets"][-1] == len(packed.arrays["text"]) - 4 * 80


def test_fraction_means_nothing_for_split_files(tmp_path):
    x, y = cut(SAY * 3)
    with pytest.raises(ConfigError, match="these files are split already"):
        read_shakespeare(json_folder(tmp_path, {"u": (x, y)}, {"u": (x, y)}), fraction=0.8)


def test_the_raw_text_is_found_beside_other_files(tmp_path):
    (tmp_path / "raw_data.txt.xz").write_bytes(lzma.compress(raw(two(speech("Ann", 20))).encode()))
    (tmp_path / "README.txt").write_text("by William Shakespeare")
    x, y = cut(SAY * 3)
    json_folder(tmp_path, {"u": (x, y)}, {"u": (x, y)})
    with pytest.raises(DataError, match="has files of several formats: text, leaf; choose one with --format"):
        read_shakespeare(tmp_path)
    assert read_shakespeare(tmp_path, format="text").arrays["client_names"].tolist() == ["A_PLAY_ANN"]
    assert read_shakespeare(tmp_path / "all_data_niid_0_keep_0_train_9.json").arrays["client_names"].tolist() == ["u"]
    (tmp_path / "copy.txt").write_text(raw(two(speech("Ann", 20))))
    with pytest.raises(DataError, match="has several texts"):
        read_shakespeare(tmp_path, format="text")
