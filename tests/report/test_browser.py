"""The page in a real browser: nothing is said on its console, charts and pictures are there and can be read.

The page forbids scripts; so a copy without that, and with a script that opens everything and measures it, tells the
sizes.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import rewriter
import rules
from tests import browser
from tests.report.noted import HOSTILE, ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no chromium (apt-get install chromium)")

MEASURE = """<script>
document.querySelectorAll("details").forEach(one => one.open = true);
const size = one => { const r = one.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const pictures = [...document.querySelectorAll(".picture svg")].map(svg => ({
  frame: size(svg),
  boxes: [...svg.querySelectorAll("g[transform]")].map(box => ({
    rect: size(box.querySelector("rect")),
    texts: [...box.querySelectorAll("text")].map(text => [text.textContent, ...size(text)]),
  })),
}));
const charts = [...document.querySelectorAll(".chart svg")].map(svg => ({
  frame: size(svg),
  marks: [...svg.querySelectorAll("path, use")].map(size),
  texts: [...svg.querySelectorAll("text")].map(text => [text.textContent, ...size(text)]),
}));
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const told = document.createElement("pre");
told.id = "told";
told.textContent = JSON.stringify({pictures, charts, wide});
document.body.append(told);
</script>"""

Sides = list[float]


def measured(page: str, folder: Path) -> dict[str, Any]:
    file = folder / "measured.html"
    file.write_text(POLICY.sub("", page).replace("</body>", MEASURE + "</body>"), "utf-8")
    document, console = browser.loaded(file)
    assert console == []
    (told,) = re.findall(r'<pre id="told">(.*?)</pre>', document, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(told))
    return found


def within(inner: Sides, outer: Sides, slack: float = 1.0) -> bool:
    return all(a >= b - slack for a, b in zip(inner[:2], outer[:2], strict=True)) and all(
        a <= b + slack for a, b in zip(inner[2:], outer[2:], strict=True)
    )


def apart(a: Sides, b: Sides) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def looks_well(found: dict[str, Any]) -> None:
    """Everything has a size and lies in its frame; texts in their boxes; no box on another."""
    for chart in found["charts"]:
        assert chart["frame"][2] - chart["frame"][0] > 300
        assert chart["frame"][3] - chart["frame"][1] > 50
        assert any(right - left > 5 and bottom - top > 0 for left, top, right, bottom in chart["marks"])
        for text, *sides in chart["texts"]:
            assert within(sides, chart["frame"], 3), text
            assert sides[2] > sides[0], text
    for picture in found["pictures"]:
        for k, box in enumerate(picture["boxes"]):
            assert within(box["rect"], picture["frame"])
            assert all(apart(box["rect"], other["rect"]) for other in picture["boxes"][:k])
            for text, *sides in box["texts"]:
                assert within(sides, box["rect"]), text
                assert sides[2] > sides[0], text
    assert found["wide"] <= 0  # the page need not be scrolled sideways


def test_the_page_of_a_model(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    page = rewriter.html_report(rewriter.run(model, rules.weight_bias), model)
    (tmp_path / "page.html").write_text(page, "utf-8")
    assert browser.loaded(tmp_path / "page.html")[1] == []
    found = measured(page, tmp_path)
    assert (len(found["charts"]), len(found["pictures"])) == (1 + 6, 2 * 6)
    assert all(len(picture["boxes"]) >= 3 for picture in found["pictures"])
    looks_well(found)


def test_hostile_names_do_nothing(tmp_path: Path) -> None:
    long = "WWWW_long_name/" * 20 + "数学$x^{2"
    model, result = ran([2, 3, 4, 8], {0: HOSTILE, 2: long, 3: "卷积层第一组权重量化节点名称很长"})
    looks_well(measured(rewriter.html_report(result, model, title=long), tmp_path))


def test_the_console_is_heard(tmp_path: Path) -> None:
    """What a page would load, or run, is refused and said: so the silence above means something."""
    model, result = ran([2])
    page = rewriter.html_report(result, model)
    bad = page.replace("</body>", '<img src="http://127.0.0.1:9/x.png"><script>alert(1)</script></body>')
    (tmp_path / "page.html").write_text(bad, "utf-8")
    assert len(browser.loaded(tmp_path / "page.html")[1]) == 2
