"""The report in a real browser: light and dark, wide and narrow, no error, no request, nothing cut off."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grok.analysis import report
from tests.analysis.simulate import census, sweep, write

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("selenium"), reason="selenium is not installed (pip install selenium)"),
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no browser: install Debian's chromium and chromium-driver"),
]
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
def page(reported: Path) -> Path:
    return reported / "out" / "report.html"


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


def shown(driver: Any, page: Path, unfolded: bool = True) -> None:
    """Open a page and wait until its charts are drawn; ``unfolded``: with everything that is folded away open."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(page.as_uri())
    WebDriverWait(driver, 20).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))
    if unfolded:
        driver.execute_async_script(
            "for (const fold of document.querySelectorAll('details')) fold.open = true;"
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]));"
        )


def sized(driver: Any, width: int, height: int = 800) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def point(driver: Any, chart: str, kind: str, x: float, y: float) -> None:
    """Send a pointer event to a place of the plot, in shares of its width and height from the upper left."""
    driver.execute_script(
        """
        const over = document.querySelector(arguments[0] + ' .u-over'), box = over.getBoundingClientRect();
        over.dispatchEvent(new PointerEvent(arguments[1], {
          bubbles: true, clientX: box.left + arguments[2] * box.width, clientY: box.top + arguments[3] * box.height }));
        """,
        chart, kind, x, y,
    )  # fmt: skip


def ink_above(driver: Any, chart: str) -> int:
    """Return how many pixels of a chart the highlight covers."""
    counted: int = driver.execute_script(
        """
        const above = document.querySelector(arguments[0] + ' canvas.above');
        const { data } = above.getContext('2d').getImageData(0, 0, above.width, above.height);
        return data.filter((value, i) => i % 4 === 3 && value).length;
        """,
        chart,
    )
    return counted


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_without_an_error(driver: Any, page: Path, width: int, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    sized(driver, width)
    shown(driver, page)
    assert driver.title.startswith("Which source of randomness decides"), "the question of the store's only design"
    assert driver.get_log("browser") == []
    log = [line["message"] for line in driver.get_log("performance")]
    assert [line for line in log if '"Network.requestWillBeSent"' in line and '"url":"http' in line] == []
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "the page scrolls sideways"
    figures = driver.execute_script(
        "return [...document.querySelectorAll('figure:not(.live) svg, .plot .u-over')].map(s => "
        "[s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
    )
    assert len(figures) >= 8
    assert all(w > 250 and h > 80 for w, h in figures), figures
    smallest = driver.execute_script(
        """
        const sizes = [];
        for (const node of document.querySelectorAll('main *, header *')) {
          const scale = node.closest('svg')?.getScreenCTM()?.a ?? 1;
          const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
          if (own && node.getClientRects().length) sizes.push(parseFloat(getComputedStyle(node).fontSize) * scale);
        }
        return Math.min(...sizes);
        """
    )
    assert smallest >= 10.5, "text too small to read"
    ink, paper = driver.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map("
        "c => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
    )
    assert (ink < paper) == (scheme == "light")
    # The figures follow: their text takes the page's ink, not a colour of its own.
    label = driver.execute_script(
        "return getComputedStyle(document.querySelector('#figure-variance_shares svg text')).fill.match(/\\d+/g)"
        ".slice(0, 3).map(Number).reduce((a, b) => a + b)"
    )
    assert abs(label - paper) > 150


@pytest.fixture(scope="module", params=["64 seeds", "16 seeds", "48 runs in 2 populations"])
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return how a page begins, and the page: of 64 seeds, of 16 of 24 planned ones, or of two weight decays."""
    store, out = Path(__file__).parents[2] / "results" / "quickstart-census" / "store", tmp_path_factory.mktemp("seeds")
    if (said := request.param) != "64 seeds":
        decays = (0.4, 1.0) if "2" in said else (1.0,)
        every = [t for decay in decays for t in census(24, np.random.default_rng(0), optim__weight_decay=decay)]
        store = write(every if "2" in said else every[:16], out / "store", sweep(every))
    assert report.main([str(store), "--out", str(out)]) == 0
    return said, out / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_screen_has_the_answer_a_picture_and_the_next_step(
    driver: Any, answered: tuple[str, Path], width: int
) -> None:
    said, page = answered
    sized(driver, width)
    shown(driver, page, unfolded=False)
    ends = driver.execute_script(
        "return ['h1', '.lead', 'header .u-over', 'header figcaption', '.next']"
        ".map(place => document.querySelector(place).getBoundingClientRect().bottom)"
    )
    assert ends == sorted(ends) and ends[-1] <= 800
    assert driver.execute_script("return document.querySelector('.lead').textContent").startswith(said)
    if said != "64 seeds":
        return
    colours = driver.execute_script(
        """
        const canvas = document.querySelector('header .plot canvas');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return ['blue', 'teal', 'grey'].map(name => {
          const wanted = getComputedStyle(document.body).getPropertyValue('--f-' + name).match(/[0-9a-f]{2}/g);
          return data.some((v, i) => i % 4 === 0 && data[i + 3] &&
            wanted.every((hex, k) => Math.abs(data[i + k] - parseInt(hex, 16)) < 40));
        });
        """
    )
    assert colours == [True, True, True], "a class has no curve"


def test_no_text_of_a_figure_is_cut_off(driver: Any, page: Path) -> None:
    shown(driver, page)
    driver.execute_script(
        "for (const figure of document.querySelectorAll('figure.live')) figure.classList.remove('live')"
    )
    outside = driver.execute_script(
        """
        const found = [];
        for (const svg of document.querySelectorAll('figure > .svg > svg')) {
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


def test_a_chart_says_which_run_is_under_the_pointer(driver: Any, page: Path) -> None:
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    shown(driver, page)
    accuracy = "#figure-seed_curves"
    point(driver, accuracy, "pointermove", 0.9, 0.05)
    said = driver.execute_script("return document.querySelector('.pointer-tip').innerText").split("\n")
    assert said[0].startswith("seed ")
    seed, step, value = (float(said[i].split()[-1].replace(",", "")) for i in (0, 2, 3))
    curves = pd.read_csv(page.parent / "figures" / "seed_curves.csv")
    best = pd.read_csv(page.parent / "tables" / "census_best_seeds.csv")
    here = curves[(curves["step"] == step) & (abs(curves["val_acc"] - value) < 1e-3)]["run_id"].str[:10]
    assert len(here) and set(best.loc[best["seed"] == seed, "run"]) <= set(here)


def test_a_run_that_is_chosen_in_a_chart_is_shown_everywhere(driver: Any, page: Path) -> None:
    shown(driver, page)
    charts = [f"#figure-{name}" for name in ("seed_curves", "logit_histogram", "time_histogram", "order_of_events")]
    row = "#census table tr.run"
    assert [ink_above(driver, chart) for chart in charts] == [0] * len(charts)
    driver.execute_script(f"document.querySelector('{row} code').click()")  # its run id
    assert all(ink_above(driver, chart) > 20 for chart in charts)
    bar = driver.execute_script("return document.querySelector('#selected-run').innerText")
    label = driver.execute_script(f"return document.querySelector('{row}').cells[0].innerText")
    assert f"seed {label}" in bar and "copy" in bar
    driver.execute_script("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert [ink_above(driver, chart) for chart in charts] == [0] * len(charts)
    for kind in ("pointerdown", "pointerup", "pointerleave"):
        point(driver, charts[0], kind, 0.9, 0.05)
    assert driver.execute_script("return document.querySelector('#selected-run').hidden") is False
    assert all(ink_above(driver, chart) > 20 for chart in charts[:2])
    key = driver.execute_script("return location.hash")
    driver.refresh()
    shown(driver, Path(page))
    assert key.startswith("#run=")


def test_the_table_of_all_seeds_draws_only_what_is_seen(driver: Any, page: Path) -> None:
    shown(driver, page)
    seeds = pd.read_csv(page.parent / "tables" / "seeds_every.csv")
    count, filtered, unknown = driver.execute_script(
        """
        const table = document.querySelector('#seeds .long'), input = table.querySelector('input');
        const count = () => table.querySelector('.count').textContent, drawn = table.querySelectorAll('tbody tr.run');
        const before = [count(), drawn.length];
        input.value = 'generalised<2000';
        input.dispatchEvent(new Event('input'));
        const bounded = count();
        input.value = 'foo>3';
        input.dispatchEvent(new Event('input'));
        const unknown = count();
        input.value = '';
        input.dispatchEvent(new Event('input'));
        return [before, bounded, unknown];
        """
    )
    assert count[0] == f"{len(seeds)} of {len(seeds)} rows"
    assert 14 <= count[1] < 40
    assert filtered == f"{(seeds['generalised'] < 2000).sum()} of {len(seeds)} rows"
    assert unknown == f"0 of {len(seeds)} rows; no column foo"
    first = driver.execute_script(
        """
        const table = document.querySelector('#seeds .long');
        const head = [...table.querySelectorAll('th')].findIndex(h => h.textContent === 'generalised');
        table.querySelectorAll('th button')[head].click();
        return table.querySelector('tbody tr.run').cells[head].textContent;
        """
    )
    assert float(first.replace(",", "")) == seeds["generalised"].min()
