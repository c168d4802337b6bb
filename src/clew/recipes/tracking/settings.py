"""What the tracking recipes can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from clew import Section
from clew.data.transforms import AnyTransform, DropHoles, DropShort, DropSpinning
from clew.recipes.tracking.geometry import PRESETS, Detector, Positive
from clew.recipes.tracking.gun import Gun
from clew.recipes.tracking.hitgraph import Edges
from clew.recipes.tracking.metrics import ABOVE_1_GEV, Judging
from clew.recipes.tracking.segments import Segments
from clew.recipes.tracking.sequences import Seeds

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Network(Section):
    """The GraphNet; the defaults are the published 102,785 parameters."""

    hidden: Count = 128
    iterations: Count = 1
    positive_weight: Positive = 2.3
    """Weight of true edges in the loss."""
    negative_weight: Positive = 0.555


class Building(Section):
    """From scores to tracks."""

    threshold: Share = 0.05
    """Smallest edge score that can become part of a track."""
    method: Literal["walk", "components"] = "walk"
    """`walk`: the best-scored edges take their hits first; `components`: whatever edges join is one track."""


class Finder(Section):
    """What all tracking recipes have. A detector's name changes the defaults of other sections too (`of_detector`)."""

    of_detector: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "acts": {"judging": ABOVE_1_GEV.model_dump()},
    }
    """By detector and section: what becomes of settings that are left at their defaults."""
    without_transforms: ClassVar[tuple[str, ...]] = ("acts",)
    """Detectors whose modules overlap: a track with two hits on a station is no spinning one."""

    transforms: tuple[AnyTransform, ...] = (DropSpinning(), DropHoles(), DropShort(stations=3))
    detector: Detector = Detector()
    gun: Gun = Gun()
    judging: Judging = Judging()

    @model_validator(mode="before")
    @classmethod
    def _apply_detector(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in the values of the named detector wherever none was set."""
        detector = data.get("detector") if isinstance(data, dict) else None
        name = str(detector.get("name") if isinstance(detector, dict) else getattr(detector, "name", None))
        explicit = (info.context or {}).get("explicit", data)
        for section, preset in {"detector": PRESETS.get(name, {}), **cls.of_detector.get(name, {})}.items():
            values = data.get(section, {}) if isinstance(data, dict) else None
            if preset and isinstance(values, dict | Section):
                data = {**data, section: _with_preset(values, preset, explicit.get(section, {}))}
        return {**data, "transforms": ()} if name in cls.without_transforms and "transforms" not in explicit else data


def _with_preset(values: Any, preset: Mapping[str, Any], explicit: Any) -> dict[str, Any]:
    """A section with the values of `preset`, except where `explicit` (a mapping, or the section itself) has a value."""
    if isinstance(explicit, Section):
        explicit = explicit.model_dump(exclude_unset=True)
    plain = values.model_dump() if isinstance(values, Section) else values
    return {**plain, **{key: value for key, value in preset.items() if (explicit or {}).get(key) is None}}


class Settings(Finder):
    """Sections of `tracking`."""

    segments: Segments = Segments()
    model: Network = Network()
    tracks: Building = Building()


class HitNetwork(Section):
    """The interaction network; one set of weights for all iterations."""

    hidden: Count = 32
    iterations: Count = 8
    positive_weight: Positive = 1.0
    """Weight of true edges in the loss."""
    negative_weight: Positive = 1.0


class HitBuilding(Building):
    """From scores to tracks."""

    shortest: Count = 3
    """Hits of the shortest track that is kept."""
    overlaps: bool | None = None
    """Whether a station may see a track twice, because its modules overlap; for cylinders (`overlaps.merged`). If not
    given: for ACTS events."""


class HitSettings(Finder):
    """Sections of `hitgraph`."""

    of_detector: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "acts": {
            **Finder.of_detector["acts"],
            "edges": {"turn_cut": 0.0006, "slope_cut": 5.0, "z0_cut": 200.0},
            "tracks": {"threshold": 0.1, "overlaps": True},
        }
    }

    edges: Edges = Edges()
    model: HitNetwork = HitNetwork()
    tracks: HitBuilding = HitBuilding()


class SequenceNetwork(Section):
    """TrackNETv2; the defaults are the published 10,020 parameters of the ellipse."""

    hidden: Count = 32
    layers: Count = 2
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Weight of the distance in the loss, against the size of the ellipse. Published: 0.8 on BES-III, 0.01 on BM@N."""


class SequenceBuilding(Section):
    """From ellipses to tracks."""

    widen: Positive = 1.5
    """Factor on the radii of the ellipses when hits are looked for."""
    threshold: Share = 0.05
    """Smallest score of the ghost classifier for a hit to be added."""
    branches: Count = 4
    """Hits that a candidate may be extended by at each station: the best-scored go on."""
    beam: Count = 2000
    """Candidates of one event that are followed at a time: an untrained classifier would let them multiply."""


class SequenceSettings(Finder):
    """Sections of `tracknet`."""

    seeds: Seeds = Seeds()
    model: SequenceNetwork = SequenceNetwork()
    tracks: SequenceBuilding = SequenceBuilding()
