"""Event displays are plain JSON, with every kind of track in them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from clew import Dataset, Table
from clew.recipes.tracking import Tracking, display, matching
from clew.recipes.tracking.geometry import Detector
from tests.recipes.tracking import CYLINDERS, Hit, at, to_table

WHOLE = [[at(r, 0.1 + 2 * track, 5.0 * track, s, track) for s, r in enumerate(CYLINDERS.radii)] for track in range(2)]
EVENT = [*WHOLE[0], *WHOLE[1], *(at(r, 4.0, 0.0, s) for s, r in enumerate(CYLINDERS.radii))]


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def draw(samples: Table, track_numbers: Any, detector: Detector) -> dict[str, Any]:
    return display.events(samples, track_numbers, matching.match(samples, track_numbers), detector)


def test_found_missed_and_ghost_tracks_are_drawn(dataset: Dataset) -> None:
    track_numbers = np.array([0, 0, 0, -1, -1, -1, 1, 1, 1])
    (drawn,) = draw(to_table([EVENT]), track_numbers, CYLINDERS).values()
    traces = {trace["name"]: trace for trace in strict(json.dumps(drawn))["data"] if trace["xaxis"] == "x"}
    assert {name: len(trace["x"]) for name, trace in traces.items()} == {"hits": 9, "found": 5, "missed": 5, "ghost": 5}
    assert traces["missed"]["x"][1] == round(WHOLE[1][0].x, 2)


def test_an_event_without_hits_can_be_drawn() -> None:
    drawn = draw(to_table([[], EVENT]), np.full(9, -1), CYLINDERS)
    assert list(drawn) == ["event_0", "event_1"]
    assert strict(json.dumps(drawn))["event_0"]["data"][0]["x"] == []


def test_displays_of_generated_events_are_json(dataset: Dataset) -> None:
    recipe, samples = Tracking(), dataset.read("test").slice(0, 3)
    outputs = {"output": samples.ragged("label").values * 8.0 - 4}
    drawn = recipe.display(samples, outputs, recipe.reconstruct(samples, outputs))
    assert len(drawn) == 3
    for figure in drawn.values():
        assert strict(json.dumps(figure, allow_nan=False)) == figure


def test_planes_are_drawn_along_the_beam() -> None:
    planes = Detector(name="bmn")
    track = [Hit(2.0 * s, -1.0 * s, z, s, 0) for s, z in enumerate(planes.planes)]
    (drawn,) = draw(to_table([track]), np.zeros(9, dtype=np.int64), planes).values()
    lines = [trace for trace in strict(json.dumps(drawn))["data"] if trace["name"] == "found"]
    assert [line["x"][1:-1] for line in lines] == [list(np.round(planes.planes, 2))] * 2
    assert [line["y"][-2] for line in lines] == [16.0, -8.0]
    assert len(drawn["layout"]["shapes"]) == 18
