"""docs/images/report.png: the report page of docs/results/digits.csv in a real browser (Chromium).

    python scripts/screenshot.py

The picture has a digest of the data in a tEXt chunk, which tests/test_results.py compares.
"""

import hashlib
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from fedgbo.reports.label_skew import skew_of
from fedgbo.reports.load import read_metrics
from fedgbo.reports.report_files import build_page
from fedgbo.reports.sections import sections_of

ROOT = Path(__file__).parents[1]
DATA, PICTURE = ROOT / "docs" / "results" / "digits.csv", ROOT / "docs" / "images" / "report.png"
HEADER = 33  # bytes of PNG's signature and its first chunk


def main() -> None:
    """Build the page, take the picture, and write the digest into it."""
    sys.path.insert(0, str(ROOT))
    from tests.browser import browser  # it needs websockets, of the extra dev

    sections = sections_of(read_metrics(DATA))
    page = build_page(sections, [skew_of(section) for section in sections], [])
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "report.html"
        file.write_text(page, encoding="utf-8")
        with browser(Path(name)) as tab:
            tab.size(1000, 1000)
            tab.media(scheme="light")
            tab.open(file)
            tab.screenshot(PICTURE, whole=False)
    text = b"Comment\0" + f"{DATA.name}, SHA-256 {hashlib.sha256(DATA.read_bytes()).hexdigest()}".encode()
    chunk = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(b"tEXt" + text))
    content = PICTURE.read_bytes()
    PICTURE.write_bytes(content[:HEADER] + chunk + content[HEADER:])


if __name__ == "__main__":
    main()
