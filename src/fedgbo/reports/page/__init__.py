"""The report as one page that opens offline: `report.html`, with everything it needs inside."""

from fedgbo.reports.page.build import build_page

__all__ = ["build_page"]
