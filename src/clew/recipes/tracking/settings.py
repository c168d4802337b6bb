"""Settings of the tracking recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from clew import Section
from clew.data.transforms import AnyTransform, DropHoles, DropShort, DropSpinning
from clew.recipes.tracking.chains import ChainConfig
from clew.recipes.tracking.geometry import PRESETS, Detector, Positive
from clew.recipes.tracking.hitgraph import EdgeCuts
from clew.recipes.tracking.metrics import ABOVE_1_GEV, TrackingMetricsConfig
from clew.recipes.tracking.particle_gun import ParticleGun
from clew.recipes.tracking.sectors import SectorConfig
from clew.recipes.tracking.segments import SegmentCuts
from clew.recipes.tracking.sequences import SeedCuts
from clew.recipes.tracking.triplets import TripletCuts

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class GraphNetConfig(Section):
    """The GraphNet. The defaults give the published network of 102,785 parameters."""

    hidden: Count = 128
    """Width of the hidden layers."""
    iterations: Count = 1
    """Number of rounds of message passing."""
    positive_weight: Positive = 2.3
    """Weight of true edges in the loss."""
    negative_weight: Positive = 0.555
    """Weight of false edges in the loss."""


class TrackBuildingConfig(Section):
    """How tracks are built from edge scores."""

    threshold: Share = 0.05
    """Edges with a lower score are ignored."""
    method: Literal["walk", "components"] = "walk"
    """`walk`: hits are assigned to edges in order of falling score; `components`: a track is a connected component."""


class TrackFinderConfig(Section):
    """Settings of all tracking recipes.

    The name of a detector also changes defaults of other sections (`detector_presets`). A value that is set stays.
    """

    detector_presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "acts": {"metrics": ABOVE_1_GEV.model_dump()},
    }
    """Defaults by detector and section."""
    without_transforms: ClassVar[tuple[str, ...]] = ("acts",)
    """Detectors with no transforms by default. Their modules overlap: two hits on a station do not mean a looping
    track."""

    transforms: tuple[AnyTransform, ...] = (DropSpinning(), DropHoles(), DropShort(stations=3))
    """What is done to events before samples are made, in this order."""
    detector: Detector = Detector()
    gun: ParticleGun = ParticleGun()
    metrics: TrackingMetricsConfig = TrackingMetricsConfig()

    @model_validator(mode="before")
    @classmethod
    def _apply_detector(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in the values of the named detector wherever none was set."""
        detector = data.get("detector") if isinstance(data, dict) else None
        name = str(detector.get("name") if isinstance(detector, dict) else getattr(detector, "name", None))
        explicit = (info.context or {}).get("explicit", data)
        for section, preset in {"detector": PRESETS.get(name, {}), **cls.detector_presets.get(name, {})}.items():
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


class TrackingConfig(TrackFinderConfig):
    """Settings of the recipe `tracking`."""

    segments: SegmentCuts = SegmentCuts()
    model: GraphNetConfig = GraphNetConfig()
    tracks: TrackBuildingConfig = TrackBuildingConfig()


class InteractionNetConfig(Section):
    """The interaction network. All iterations share one set of weights."""

    hidden: Count = 32
    """Width of the hidden layers."""
    iterations: Count = 8
    """Number of rounds of message passing."""
    positive_weight: Positive = 1.0
    """Weight of true edges in the loss."""
    negative_weight: Positive = 1.0
    """Weight of false edges in the loss."""


class HitGraphBuildingConfig(TrackBuildingConfig):
    """How tracks are built from edge scores."""

    min_hits: Count = 3
    """Tracks with fewer hits are removed."""
    overlaps: bool | None = None
    """Whether a track may have two hits on a station because modules overlap (cylinders only, see `overlaps.py`).
    Default: true for ACTS events, false for others."""


class HitGraphConfig(TrackFinderConfig):
    """Settings of the recipe `hitgraph`."""

    detector_presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "acts": {
            **TrackFinderConfig.detector_presets["acts"],
            "edges": {"turn_cut": 0.0006, "slope_cut": 5.0, "z0_cut": 200.0},
            "tracks": {"threshold": 0.1, "overlaps": True},
        }
    }

    edges: EdgeCuts = EdgeCuts()
    model: InteractionNetConfig = InteractionNetConfig()
    tracks: HitGraphBuildingConfig = HitGraphBuildingConfig()


class TripletsConfig(TrackFinderConfig):
    """Settings of the recipe `triplets`."""

    transforms: tuple[AnyTransform, ...] = ()
    """What is done to events before samples are made, in this order."""
    detector: Detector = Detector(name="acts")
    metrics: TrackingMetricsConfig = ABOVE_1_GEV
    sectors: SectorConfig = SectorConfig()
    triplets: TripletCuts = TripletCuts()
    model: InteractionNetConfig = InteractionNetConfig(iterations=6)
    tracks: ChainConfig = ChainConfig()

    @model_validator(mode="after")
    def _known_layers(self) -> TripletsConfig:
        if self.detector.name not in ("acts", "trackml"):
            raise ValueError(f"detector.name must be acts or trackml, whose layers it knows; got {self.detector.name}")
        return self


class TrackNetNetworkConfig(Section):
    """TrackNETv2. The defaults give the published network for the ellipse, of 10,020 parameters."""

    hidden: Count = 32
    """Width of the GRU."""
    layers: Count = 2
    """Layers of the GRU."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Weight of the distance in the loss, against the size of the ellipse. Published: 0.8 on BES-III, 0.01 on BM@N."""


class CandidateConfig(Section):
    """How candidates are extended to tracks."""

    widen: Positive = 1.5
    """Factor on the radii of the ellipses in the search for hits."""
    threshold: Share = 0.05
    """A hit is added if the ghost classifier gives it at least this score."""
    branches: Count = 4
    """Largest number of hits that extend a candidate at each station, best score first."""
    beam: Count = 2000
    """Largest number of candidates per event. Without a limit an untrained classifier would let them multiply."""


class TrackNetConfig(TrackFinderConfig):
    """Settings of the recipe `tracknet`."""

    seeds: SeedCuts = SeedCuts()
    model: TrackNetNetworkConfig = TrackNetNetworkConfig()
    tracks: CandidateConfig = CandidateConfig()
