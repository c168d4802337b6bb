"""Pages of datasets: what a manifest says is shown."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from clew import Client, Dataset
from tests.server.conftest import Live
from tests.server.dashboard.test_pages import logged_in


def test_a_registered_dataset_shows_samples_splits_size_and_recipe(
    shared_server: Live, client_for: Callable[..., Client], client: httpx.Client, dataset: Dataset
) -> None:
    info = client_for("ada").datasets.register(dataset.path)
    splits = " · ".join(f"{split} {count:,}" for split, count in dataset.splits.items())
    with logged_in(shared_server, shared_server.token) as pages:
        listed, single = pages.get("/datasets").text, pages.get(f"/datasets/{info.key}").text
    assert splits in listed and splits in single
    assert "<td>tracking</td>" in listed


def test_anything_may_be_in_a_manifest(shared_server: Live, client: httpx.Client) -> None:
    manifests = [{"splits": [1]}, {"splits": {"train": [1, {"events": "x", "bytes": None}], "val": 3}, "recipe": 4}]
    for place, manifest in enumerate(manifests):
        body = {"key": f"odd-{place}", "name": "odd", "location": "/there", "manifest": manifest}
        assert client.post("/api/v1/datasets", json=body).status_code == 201
    with logged_in(shared_server, shared_server.token) as pages:
        paths = ("/datasets", "/datasets/odd-0", "/datasets/odd-1")
        assert [pages.get(path).status_code for path in paths] == [200, 200, 200]
