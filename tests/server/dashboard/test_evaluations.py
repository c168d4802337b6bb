"""Evaluations on the pages: scores with errors in the list, on the run and in a comparison; plots by evaluation."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.server.dashboard.conftest import Visitor
from tests.server.test_records import make, send, start, step


def evaluation(seq: int, name: str, **metrics: dict[str, float]) -> dict[str, Any]:
    facts = {"name": name, "data": "dataset", "events": 600, "seconds": 1.0, "checkpoint": "last"}
    return {"seq": seq, "time": 1100.0 + seq, "kind": "evaluation", "metrics": metrics, **facts}


def evaluated_run(client: httpx.Client, name: str, efficiency: float) -> int:
    run = make(client, name)
    send(client, run, start(), *(step(n, n) for n in range(1, 5)))
    first = {"value": 0.5, "error": 0.02}
    newest = {"value": efficiency, "error": 0.008, "low": efficiency - 0.009, "high": efficiency + 0.007}
    symmetric = {"value": efficiency - 0.1, "error": 0.012}
    send(
        client,
        run,
        evaluation(0, "test", efficiency=first),
        evaluation(1, "test", efficiency=newest, loss={"value": 0.2}),
        evaluation(2, "cosmics", efficiency=symmetric),
        stream="evaluate",
    )
    figure = {"data": [{"x": [1], "y": [1]}], "layout": {"title": {"text": "Efficiency against pT"}}}
    for folder in ("test", "cosmics"):
        address = f"/api/v1/runs/{run}/artefacts/plots/{folder}/00-efficiency.json?kind=plot"
        assert client.put(address, content=json.dumps(figure)).status_code == 201
    return run


def test_scores_have_errors_everywhere(visitor: Visitor, client: httpx.Client) -> None:
    first, second = (evaluated_run(client, f"scored-{place}", 0.956 - place / 100) for place in range(2))
    page = visitor.open(f"/runs/{first}")
    table = page.locator("table.scores")
    assert [text.split("\n")[0] for text in table.locator("th").all_inner_texts()] == ["Metric", "test", "cosmics"]
    rows = {row[0]: row[1:] for row in (text.split("\t") for text in table.locator("tbody tr").all_inner_texts())}
    assert rows["efficiency"] == ["0.9560 +0.0070 −0.0090", "0.856 ± 0.012"]
    assert rows["loss"] == ["0.2000", "–"]

    visitor.open(f"/compare?run={first}&run={second}")
    texts = page.locator("table.scores tbody tr").all_inner_texts()
    assert "test\tefficiency\t0.9560 +0.0070 −0.0090\t0.9460 +0.0070 −0.0090" in texts
    assert page.locator("table.scores td.best").first.inner_text().startswith("0.856")

    visitor.open("/runs?q=scored-")
    assert "cosmics/efficiency" in page.locator("thead").inner_text()
    assert "0.9560 +0.0070 −0.0090" in page.locator(f"tr:has(a[href='/runs/{first}'])").inner_text()

    visitor.open(f"/runs/{first}/plots")
    page.wait_for_selector(".js-plotly-plot .scatterlayer path", state="attached")
    assert page.locator("h2.group").all_inner_texts() == ["Evaluation: cosmics", "Evaluation: test"]
    assert visitor.faults == []
