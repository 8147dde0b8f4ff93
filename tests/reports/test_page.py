"""The page in a real browser: drawn, hovered, zoomed, switched, printed; and what a hostile run folder cannot do."""

import sys
import time
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from fedgbo.core.errors import MissingExtraError
from fedgbo.reports.label_skew import skew_of
from fedgbo.reports.load import collect
from fedgbo.reports.report_files import _library, build_page, thinned
from fedgbo.reports.sections import sections_of
from tests.reports.conftest import write_run
from tests.reports.runs import FEDAVG, FEDGBO

FEDGBOS = "rgb(214, 64, 11)"  # colour
HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>{{7*7}}&"\''


def drifting(run):
    """The run with a measured drift in each of its records."""
    drift = {"cosine": 0.2, "error": 0.5, "bound": 0.9, "no such thing": 1.0}
    return replace(run, records=tuple(replace(record, drift=drift) for record in run.records))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of two sections, with everything that a page can have."""
    folder = tmp_path_factory.mktemp("report")
    write = partial(write_run, folder)
    runs = [write(FEDAVG, seed, [0.1, 0.4 + seed / 20, 0.6, 0.7]) for seed in range(3)]
    runs += [write(FEDGBO, seed, [0.1, 0.7, 0.8 + seed / 40, 0.9]) for seed in range(3)]
    runs += [write(FEDAVG, 9, [0.1, 0.2], name="dead", status=None, local_steps=5)]
    sections = sections_of([drifting(run) for run in runs])
    file = folder / "report.html"
    file.write_text(build_page(sections, [skew_of(section) for section in sections], []), encoding="utf-8")
    return file


def text(page, selector):
    return page.evaluate(f"document.querySelector({selector!r}).textContent")


def lines(page):
    """The strokes of the curves that are drawn in the first chart."""
    return page.evaluate("""[...document.querySelectorAll('#digits-K-10-curves .plot g.mark-line path')]
        .map((path) => getComputedStyle(path).stroke)""")


def domain(page, axis):
    return page.evaluate(f"document.querySelector('#digits-K-10-curves').view.scale('{axis}').domain()")


def point(page, algorithm, t):
    """Where a point of the first chart is on the screen."""
    return page.evaluate(f"""(() => {{
        const chart = document.querySelector('#digits-K-10-curves');
        const data = JSON.parse(chart.querySelector('script').text);
        const p = data.points.find((p) => p.algorithm === {algorithm!r} && p.round === {t});
        const box = chart.querySelector('.plot svg').getBoundingClientRect(), [left, top] = chart.view.origin();
        return [box.x + left + chart.view.scale('x')(p.round), box.y + top + chart.view.scale('y')(p.accuracy)];
    }})()""")


@pytest.mark.browser
def test_the_page_in_a_browser(page, report):
    page.size(1100, 900)
    page.media(scheme="light")
    page.open(report)
    assert (
        page.evaluate("document.querySelectorAll('.chart .plot svg').length") == 7
    )  # curves, drift, labels; twice; and bars
    assert lines(page) == ["rgb(17, 17, 17)", FEDGBOS]
    assert "3.0x fewer rounds (10 instead of 30); three seeds are too few for an" in text(page, "header .result")
    assert "7 runs, the last one on" in text(page, "header .hint")
    assert page.evaluate("[...document.querySelectorAll('details.warning')].every((e) => !e.open)")
    assert page.evaluate("document.querySelectorAll('#digits-K-10-curves g.mark-area path').length") == 2
    hover_and_zoom(page)
    switch_algorithms(page)
    choose_axes(page)
    assert page.requests() == []
    assert page.errors() == []


def hover_and_zoom(page):
    page.evaluate("document.querySelector('#digits-K-10-curves .plot').scrollIntoView({block: 'center'})")
    x, y = point(page, "fedgbo-sgdm", 20)
    for nudge in (3, 1):
        page.pointer("mouseMoved", x + nudge, y + nudge)
    page.wait_for("document.querySelector('#vg-tooltip-element.visible')")
    tip = text(page, "#vg-tooltip-element")
    assert all(part in tip for part in ("fedgbo-sgdm", "82.5", "95% interval from", "communication rounds", "20"))
    for kind, place in (("mousePressed", x), ("mouseMoved", x + 100), ("mouseReleased", x + 100)):
        page.pointer(kind, place, y, button="left", buttons=1)
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('x').domain()[0] < 0")  # dragged
    page.click("#digits-K-10-curves .reset")
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('x').domain()[0] === 0")
    page.click("#digits-K-10-curves .in")
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('x').domain()[0] > 4")
    assert domain(page, "x") == pytest.approx([5, 25])
    x, y = point(page, "fedavg", 10)
    page.pointer("mouseWheel", x, y, deltaX=0, deltaY=-200, modifiers=8)  # with Shift
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('x').domain()[1] < 24")
    page.click("#digits-K-10-curves .reset")


def switch_algorithms(page):
    page.click("#digits-K-10-curves .legend label:first-of-type")
    page.wait_for("document.querySelectorAll('#digits-K-10-curves .plot g.mark-line path').length === 1")
    assert lines(page) == [FEDGBOS]
    page.evaluate("document.querySelector('#digits-K-10-curves .legend input').focus()")
    page.key(" ", 32)  # the keyboard does it too
    page.wait_for("document.querySelectorAll('#digits-K-10-curves .plot g.mark-line path').length === 2")


def choose_axes(page):
    titles = """[...document.querySelectorAll('#digits-K-10-curves .plot .role-axis-title text')]
        .map((t) => t.textContent).join()"""
    for x, y, wanted, end in (
        ("upload_bytes", "accuracy", "upload of all clients (KiB),test accuracy (%)", 3000 / 1024),
        ("download_bytes", "loss", "download of all clients (KiB),test loss", 6000 / 1024),
        ("flops", "train_loss", "computation of all clients (MFLOPs),training loss", 30),
        ("seconds", "accuracy", "wall-clock time (seconds),test accuracy (%)", 3),
    ):
        for name, value in (("x", x), ("y", y)):
            page.evaluate(f"""(() => {{ const s = document.querySelector('#digits-K-10-curves select.{name}');
                s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()""")
        page.wait_for(f"{titles} === {wanted!r}")
        assert domain(page, "x")[1] == pytest.approx(end, rel=0.2)
    page.click("#digits-K-10-curves .log-x")
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('x').type === 'log'")
    page.click("#digits-K-10-curves .log-y")
    page.wait_for("document.querySelector('#digits-K-10-curves').view.scale('y').type === 'log'")
    assert len(lines(page)) == 2


@pytest.mark.browser
def test_dark_phone_and_print(page, report, tmp_path):
    page.size(390, 844, mobile=True)
    page.media(scheme="dark")
    page.open(report)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('.plot svg').getBoundingClientRect().width") <= 390
    assert lines(page)[0] == "rgb(242, 242, 242)"
    page.evaluate("document.querySelector('.wide').scrollLeft = 100")  # the first column of a table stays in view
    assert page.evaluate("document.querySelector('.wide tbody th').getBoundingClientRect().x") >= 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    page.media("print", "dark")
    assert lines(page)[0] == "rgb(0, 0, 0)"  # nobody prints white on black
    widths = """[...document.querySelectorAll('#digits-K-10-curves .plot g.mark-line path')]
        .map((path) => getComputedStyle(path).strokeWidth)"""
    assert page.evaluate(widths) == ["2.2px", "3.2px"]  # FedGBO can be told from FedAvg without colour
    assert page.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    page.screenshot(tmp_path / "print.png")
    page.pdf(tmp_path / "print.pdf")
    assert (tmp_path / "print.pdf").read_bytes().startswith(b"%PDF")
    page.media()
    assert page.errors() == []


@pytest.mark.browser
def test_a_hostile_run_cannot_do_anything(page, write, tmp_path):
    """Names out of a run folder are shown as they are, in the text, the charts and the tooltips."""
    algorithm = {"name": f"x:{HOSTILE}", "optimiser": {"name": "sgd", HOSTILE: HOSTILE}}
    write(algorithm, 0, [0.1, 0.5], name="run <b>bold</b>", task={"name": HOSTILE}, status="diverged")
    (tmp_path / "<i>damaged").mkdir()
    (tmp_path / "<i>damaged" / "run.json").write_text("<script>window.hacked=1</script>")
    found = collect([tmp_path])
    sections = sections_of(found.runs)
    content = build_page(sections, [HOSTILE], found.problems, HOSTILE)
    (tmp_path / "report.html").write_text(content, encoding="utf-8")
    page.size(1100, 900)
    page.media()
    page.open(tmp_path / "report.html")
    plot = page.evaluate("""(() => { const b = document.querySelector('.plot svg').getBoundingClientRect();
        return [b.x + b.width / 2, b.y + b.height / 2]; })()""")
    for nudge in (0, 5):
        page.pointer("mouseMoved", plot[0] + nudge, plot[1])
    page.wait_for("document.querySelector('#vg-tooltip-element.visible')")
    time.sleep(0.2)  # for an image's error to be handled, if there were one
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img, b, i, main script:not([type]), table script').length") == 0
    assert text(page, "h1") == HOSTILE
    assert HOSTILE.lower() in text(page, ".legend label")
    assert page.requests() == []
    assert page.errors() == []


class Structure(HTMLParser):
    """Void elements aside, every element is closed; and what a screen reader needs is there."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_the_same_each_time(report, write, tmp_path):
    content = report.read_text()
    structure = Structure()
    structure.feed(content)
    assert structure.open == []
    tags = [tag for tag, _ in structure.seen]
    assert tags.count("h1") == 1
    assert tags.count("main") == 1
    assert all(attrs.get("scope") for tag, attrs in structure.seen if tag == "th")
    assert tags.count("table") == tags.count("caption")
    assert "http-equiv" in content
    assert "src=" not in content.partition("<script>")[0]
    assert "died at round 10 of 30" in content
    run = write(FEDAVG, 0, [0.1, 0.4], name="again")
    again = [build_page(sections_of([run]), ["x"], []) for _ in range(2)]
    assert again[0] == again[1]


def test_long_runs_are_drawn_thinned(write):
    """Chromium had not drawn 20,000 points after 30 s, on a busy machine."""
    rows = [{"algorithm": name, "round": t} for name, n in (("a", 5000), ("b", 3)) for t in range(n)]
    drawn = thinned(rows, 100)
    rounds = [row["round"] for row in drawn if row["algorithm"] == "a"]
    assert (len(rounds), rounds[0], rounds[-1]) == (100, 0, 4999)
    assert {after - before for before, after in pairwise(rounds)} == {50, 51}
    assert drawn[100:] == rows[5000:]
    run = write(FEDAVG, 0, [0.5])
    for count, thin in ((2400, False), (2401, True)):
        long = replace(run, records=tuple(replace(run.records[0], round=t) for t in range(count)))
        content = build_page(sections_of([long]), ["x"], [])
        assert ("too many evaluations to draw" in content) is thin


def test_ones_own_task_is_not_run_unasked(write, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w').close()\n")
    section = sections_of([write(FEDAVG, 0, [0.1], task={"name": f"{file}:task"})])[0]
    assert "--own-tasks opens it" in skew_of(section)
    assert not (tmp_path / "it-ran").exists()
    assert "cannot be opened here" in skew_of(section, own_files=True)
    assert (tmp_path / "it-ran").exists()


def test_a_task_that_does_not_fit_is_not_shown(write):
    section = sections_of([write(FEDAVG, 0, [0.1], task={"name": "quadratic", "dimension": 10**14})])[0]
    assert "cannot be opened here: Unable to allocate" in skew_of(section)


@pytest.mark.parametrize(("module", "what"), [("jinja2", "jinja2"), ("altair", "altair"), ("vl_convert", "vl-convert")])
def test_what_is_not_installed_is_named(write, monkeypatch, module, what):
    monkeypatch.setitem(sys.modules, module, None)
    _library.cache_clear()
    with pytest.raises(MissingExtraError, match=rf"needs? {what}: pip install 'fedgbo\[charts\]'"):
        build_page(sections_of([write(FEDAVG, 0, [0.1, 0.2])]), [""], [])


def test_ticks_of_a_phone_do_not_touch(page, write, tmp_path):
    runs = [write(FEDAVG, 0, [i / 20 for i in range(11)], rounds=100)]
    sections = sections_of(runs)
    file = tmp_path / "report.html"
    file.write_text(build_page(sections, ["not shown"], []), encoding="utf-8")
    page.size(400, 800, mobile=True)
    try:
        page.open(file)
        places = page.evaluate("""[...document.querySelectorAll('.plot g.role-axis-label text')]
            .filter((label) => label.getAttribute('text-anchor') !== 'end' || label.textContent === '100')
            .filter((label) => getComputedStyle(label).opacity !== '0' && label.getAttribute('opacity') !== '0')
            .map((label) => label.getBoundingClientRect()).map((box) => [box.left, box.right, box.top])""")
    finally:
        page.size(1400, 1000)
    lowest = max(top for *_, top in places)
    across = sorted((left, right) for left, right, top in places if top == lowest)
    assert len(across) > 3
    assert all(before[1] + 4 < after[0] for before, after in pairwise(across)), across
