"""The report in a real browser: light and dark, wide and narrow, no error, no request, nothing cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import report
from tests.analysis.test_report import store_of

selenium = pytest.importorskip("selenium", reason="selenium is not installed (pip install selenium)")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no browser: install Debian's chromium and chromium-driver"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    assert report.main([str(store_of(folder / "store")), "--out", str(folder / "out")]) == 0
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=Service(str(DRIVER)))
    yield chrome
    chrome.quit()


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_without_an_error(driver: Any, page: Path, width: int, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    assert driver.title.startswith("What does a seed decide?")
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = [
        line["message"]
        for line in driver.get_log("performance")
        if '"Network.requestWillBeSent"' in line["message"] and '"url":"http' in line["message"]
    ]
    assert asked == []
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "the page scrolls sideways"
    figures = driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width, "
        "s.getBoundingClientRect().height])"
    )
    assert len(figures) >= 8
    assert all(w > 250 and h > 80 for w, h in figures), figures
    ink, paper = driver.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map("
        "c => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
    )
    assert (ink < paper) == (scheme == "light")
    # The figures follow: their text takes the page's ink, not a colour of its own.
    label = driver.execute_script(
        "return getComputedStyle(document.querySelector('#figure-cumulative svg text')).fill.match(/\\d+/g)"
        ".slice(0, 3).map(Number).reduce((a, b) => a + b)"
    )
    assert abs(label - paper) > 150


def test_no_text_of_a_figure_is_cut_off(driver: Any, page: Path) -> None:
    driver.get(page.as_uri())
    outside = driver.execute_script(
        """
        const found = [];
        for (const svg of document.querySelectorAll('figure svg')) {
          const box = svg.getBoundingClientRect();
          for (const text of svg.querySelectorAll('text')) {
            const r = text.getBoundingClientRect();
            if (r.left < box.left - 2 || r.right > box.right + 2 || r.top < box.top - 2 || r.bottom > box.bottom + 2)
              found.push(text.textContent);
          }
        }
        return found;
        """
    )
    assert outside == []


def test_a_term_explains_itself_on_focus(driver: Any, page: Path) -> None:
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get(page.as_uri())
    seen = driver.execute_script(
        "const t = document.querySelector('.term'); t.focus(); const tip = t.querySelector('.tip');"
        "return [getComputedStyle(tip).display, tip.textContent]"
    )
    assert seen[0] == "block"
    assert len(seen[1]) > 20
