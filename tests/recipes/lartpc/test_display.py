"""Event displays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import clew
from clew import Table, settings
from clew.data.dataset import inspect
from clew.recipes.lartpc import display
from clew.recipes.lartpc.columns import CHARGE, INDEX, SIZE
from clew.recipes.lartpc.generate import events


def test_a_window_holds_the_track_and_not_the_noise() -> None:
    track = 100 * SIZE[1] + np.arange(500, 700)
    index = np.append(track, 3000 * SIZE[1] + 3000).astype(np.int32)
    charge = np.append(np.full(200, 3.0), 1.0).astype(np.float32)
    shown = display.display_window(index, charge, SIZE)
    assert shown.wires[0] <= 100 < shown.wires[1] < 200
    assert 440 < shown.ticks[0] <= 505 and 695 < shown.ticks[1] < 760
    image = display.crop(index, charge, SIZE, shown, points=10_000)
    assert image.sum() == charge[:200].sum()
    assert display.crop(index, charge, SIZE, shown, points=10).max() == 3


def test_a_window_of_nothing_is_everything() -> None:
    nothing = np.zeros(0)
    assert display.display_window(nothing.astype(np.int32), nothing.astype(np.float32), SIZE) == ((0, 3600), (0, 3600))


def test_a_picture_of_every_class() -> None:
    table = events.simulate(7, 1, size=(625, 625))
    assert display.by_class(table, per_class=2) == [0, 1, 2, 3, 4, 5, 6]
    assert "mu, " in display.title(table, 2) and "MeV" in display.title(table, 2)
    drawn = display.event_displays(table, (625, 625), per_class=1)
    (image,) = drawn["layout"]["images"]
    assert image["source"].startswith("data:image/svg+xml")


def test_events_without_labels_are_drawn_too() -> None:
    table = events.simulate(2, 1, size=(625, 625))
    bare = Table({name: table.ragged(name) for name in (INDEX, CHARGE)})
    assert display.by_class(bare) == [0, 1]
    assert display.png(display.draw(bare, (625, 625), [0, 1]))[:4] == b"\x89PNG"


def test_inspect_shows_events(tmp_path: Path) -> None:
    ((path, _),) = events.write_events(6, 1, tmp_path, size=(625, 625))
    loaded = settings.load_settings("lartpc", ["image.rows=625", "image.columns=625"])
    data = clew.prepare(
        loaded.recipe, input=[str(path)], output=str(tmp_path / "data"), split={"train": 1.0}, workers=1
    )
    (drawn,) = inspect.event_figures(data)
    assert drawn["layout"]["images"]
    assert "Events" in inspect.write_page(data, tmp_path / "page.html").read_text()
