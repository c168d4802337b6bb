"""Data files from elsewhere, in the readers of recipes: no values of the user's other files, and no code."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import blosc2
import h5py
import numpy as np
import pytest

from clew import concat, storage
from clew.errors import ConfigError, DataError
from clew.models.keras import load_keras, read_keras, without_array_warnings
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.shower_files import read_showers
from clew.recipes.jets.imagefile import ImageFile
from clew.recipes.lartpc.event_files import read_events

SECRET = b"the key of the user "
READERS: dict[str, tuple[str, tuple[int, ...], Callable[[str], Any]]] = {
    "fastsim": ("ECAL", (1, 1, 4, 5), lambda path: read_showers(path, GeometryConfig(kind="grid", cells=(1, 4, 5)))),
    "jets": ("is_top", (1, 4, 5), lambda path: ImageFile(classes=("is_top",)).pieces(path)),
    "lartpc": ("images", (1, 4, 5), lambda path: read_events(path, (4, 5))),
}


@pytest.mark.parametrize("recipe", READERS)
@pytest.mark.parametrize("way", ["external storage", "a link"])
def test_readers_of_recipes_read_no_values_of_other_files(way: str, recipe: str, tmp_path: Path) -> None:
    name, shape, read = READERS[recipe]
    (tmp_path / "secret").write_bytes(SECRET)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other[name] = np.frombuffer(SECRET, "u1").reshape(shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["energy"] = np.ones(1)
        if way == "a link":
            file[name] = h5py.ExternalLink("other.h5", name)
        else:
            file.create_dataset(name, shape, "u1", external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(DataError, match="is in another file, which is not read"):
        list(read(str(tmp_path / "a.h5")))


def test_the_python_source_in_a_blosc2_file_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = blosc2.asarray(np.ones((1, 4, 5), np.float32), urlpath="operand.b2nd", mode="w")

    def attack(inputs: Any, output: Any, offset: Any) -> None:
        open("attacked", "w").close()  # noqa: PTH123 - as an attacker writes it
        output[:] = inputs[0]

    blosc2.lazyudf(attack, (array,), np.float32).save(urlpath="images.b2nd")
    (tmp_path / "attacked").unlink(missing_ok=True)
    with pytest.raises(DataError, match="not a readable blosc2 file"):
        concat(list(read_events(str(tmp_path / "images.b2nd"), (4, 5))))
    assert not (tmp_path / "attacked").exists()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server of an attacker."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("location", ["reference::{}", "reference://a::{}", "filecache::reference::{}"])
def test_a_reference_of_fsspec_does_not_bring_other_files(location: str, web: str, tmp_path: Path) -> None:
    """Such a location can be in the settings of a run from elsewhere."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "refs.json").write_text(json.dumps({"a": [f"file://{tmp_path}/secret"]}))
    place = location.format(f"{web}/refs.json")
    for read in (storage.read, storage.expand, storage.stat, _opened):
        with pytest.raises(DataError, match="references of fsspec are not read"):
            read(place)
    with pytest.raises(DataError, match="references of fsspec are not read"):
        storage.copy(place, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def _opened(location: str) -> bytes:
    with storage.open_binary(location) as stream:
        return stream.read()


@pytest.mark.parametrize("ending", ["keras", "h5", "json"])
def test_a_keras_file_runs_no_function_of_its_author(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keras = load_keras()
    attack = keras.layers.Lambda(lambda x: x * Path("attacked").write_text("x"))
    model, file = keras.Sequential([keras.Input((2,)), attack]), tmp_path / f"model.{ending}"
    with without_array_warnings():
        model.save(file) if ending != "json" else file.write_text(model.to_json())
    Path("attacked").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="Keras cannot read it"):
        read_keras(file)
    assert not Path("attacked").exists()
