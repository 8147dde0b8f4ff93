"""Colours belong to algorithms; each can be told from the paper, light or dark."""

from itertools import combinations, product

import pytest

from fedgbo.algorithms import ALGORITHMS as CATALOGUE
from fedgbo.optimisers import OPTIMISERS as OPTIMISER_CATALOGUE
from fedgbo.reports.palette import ALGORITHMS, DARK, INK, OPTIMISERS, OTHERS, PAPER, QUIET, STRONG, Palette, shown_names


def channels(colour):
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(colour):
    """The relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_as_wcag_has_it():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_algorithm_has_its_name_and_a_colour_of_its_own():
    assert CATALOGUE.keys() <= ALGORITHMS.keys()
    assert {name: cls.__name__ for name, cls in CATALOGUE.items()}.items() <= {
        k: v[0] for k, v in ALGORITHMS.items()
    }.items()
    assert {name: cls.__name__ for name, cls in OPTIMISER_CATALOGUE.items()} == OPTIMISERS
    colours = [colour for _, colour in ALGORITHMS.values()]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("colour", [*(colour for _, colour in ALGORITHMS.values()), *OTHERS, QUIET])
def test_contrast_on_light_and_dark_paper(colour):
    assert contrast(colour, PAPER) >= 3
    assert contrast(DARK.get(colour, colour), DARK[PAPER]) >= 3


def test_other_lines_have_colours_that_no_algorithm_has():
    for one, other in product([channels(colour) for _, colour in ALGORITHMS.values()], map(channels, OTHERS)):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.15


def test_rivals_are_muted():
    """The spread of a colour's channels is 0 for grey and 1 for the strongest colours."""
    spread = {name: max(channels(colour)) - min(channels(colour)) for name, (_, colour) in ALGORITHMS.items()}
    assert spread.pop("fedgbo") > 0.75
    assert max(spread.values()) < 0.55


def test_the_papers_algorithms_are_far_apart():
    paper = ["fedgbo", "fedavg", "fedprox", "fedmax", "adaptivefedopt", "mfl", "mimelite", "mimexlite"]
    for one, other in combinations([channels(ALGORITHMS[name][1]) for name in paper], 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.2


def test_a_colour_does_not_depend_on_the_other_lines():
    alone = Palette({"fedgbo-adam": "fedgbo"})
    crowd = Palette({"mine": "mine", "fedavg": "fedavg", "fedgbo-sgdm": "fedgbo", "fedgbo-adam": "fedgbo"})
    assert alone.colour("fedgbo-adam") == crowd.colour("fedgbo-adam") == crowd.colour("fedgbo-sgdm") == STRONG
    assert crowd.colour("fedavg") == INK
    assert Palette({"fedavg": "fedavg"}, ink="var(--fedavg)").colour("fedavg") == "var(--fedavg)"
    assert crowd.dash("fedgbo-sgdm") == [1, 0]
    assert crowd.dash("fedgbo-adam") != [1, 0]  # two lines of one algorithm
    compared = Palette(crowd.algorithms, compared=("fedavg", "fedgbo-adam"))
    assert compared.dash("fedgbo-adam") == [1, 0]
    assert compared.dash("fedgbo-sgdm") != [1, 0]
    assert crowd.width("fedgbo-sgdm") > crowd.width("fedavg") > Palette({"mfl": "mfl"}).width("mfl")
    assert crowd.colour("mine") == OTHERS[0]


def test_bands_are_for_two():
    palette = Palette({"mfl": "mfl", "fedgbo-sgdm": "fedgbo", "fedgbo-adam": "fedgbo", "fedavg": "fedavg"})
    assert palette.bands == ("fedavg", "fedgbo-sgdm")
    assert Palette(palette.algorithms, compared=("fedavg", "fedgbo-adam")).bands == ("fedavg", "fedgbo-adam")
    assert Palette({"mfl": "mfl", "mime": "mime"}).bands == ("mfl", "mime")


def test_a_users_own_label_is_kept():
    assert shown_names(["mine", "scaffold"], ["fedgbo", "scaffold"]) == ["mine", "SCAFFOLD"]


def test_several_lines_of_an_algorithm_are_told_apart_by_their_optimisers():
    labels = ["fedgbo-sgdm", "fedgbo-adam", "averaged-fedavg", "averaged-fedgbo-sgdm", "fedgbo-mine"]
    shown = shown_names(labels, ["fedgbo", "fedgbo", "averaged", "averaged", "fedgbo"])
    assert shown == ["FedGBO-SGDm", "FedGBO-Adam", "Averaged-FedAvg", "Averaged-FedGBO-SGDm", "fedgbo-mine"]
