"""How many cases ran is shown at the end; a fuzzer that silently ran none finds nothing."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        (report.nodeid.split("/")[-1], dict(report.user_properties))
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call" and dict(report.user_properties).get("fuzz")
    ]
    if not lines:
        return
    terminalreporter.section("fuzz")
    for name, properties in lines:
        terminalreporter.write_line(f"{name}: {properties['fuzz']}")
    total = sum(properties["cases"] for _, properties in lines)
    terminalreporter.write_line(f"{total:,} cases in all")
