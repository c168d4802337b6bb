"""TrackNETv2: a recurrent network that predicts the next hit of a track, and a classifier that removes ghosts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clew import Batch, Loss
from clew.errors import DataError
from clew.recipes.tracking.continuation import HitIndex, TrackLines, best_per_group, inside_ellipse


@dataclass(frozen=True)
class TrackNetShape:
    """What the network needs to know about the detector, and the settings of the search for candidates."""

    stations: tuple[float, ...]
    """Depth of each station, mm."""
    period: float
    """Period of u; 0 if u is not an angle."""
    scales: tuple[float, float, float]
    """Factors that bring du/dw, dv/dw and the position at the beam to order 1."""
    reach: tuple[float, float]
    """Unit of length in u and v."""
    bridge: bool
    widen: float
    threshold: float
    branches: int
    beam: int
    max_per_event: int
    min_hits: int


class CandidateHits(NamedTuple):
    """Candidates: their hits in order (numbered through the batch), the length of each, and the score of each."""

    members: Tensor
    length: Tensor
    score: Tensor


class TrackNetwork(nn.Module):
    """10,020 parameters for the ellipse (2 layers of 32 GRU cells, and a linear layer), and a small classifier.

    The input for a hit are the features of the line from the previous hit: du/dw, dv/dw, and v at the beam. For the
    first hit it is the line from the origin.
    The ellipse lies around the straight continuation of the last two hits, in units of `TrackNetShape.reach`.
    """

    def __init__(self, shape: TrackNetShape, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.shape, self.layers, self.hidden = shape, layers, hidden
        self.gru = nn.GRU(3, hidden, layers)
        self.head = nn.Linear(hidden, 4)
        self.ghosts = nn.Sequential(
            nn.Linear(hidden + 7, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Per step: `ellipse` (steps, 4), `residual` (steps, 2) of the hit, and `logit` that the hit is the next one.

        In evaluation mode also candidates: the hits of all (`members`, `member_event`), and the `length` and `score` of
        each.
        """
        lines = TrackLines(batch["place"], batch["station"].long(), self.shape.period)
        hit, parent = batch["prefix"], batch["parent"]
        state = self.states(lines, hit, parent, batch["level"])
        prefix, after = batch["step"], batch["step_hit"]
        ellipse, residual, logit = self._steps(lines, state[prefix], hit[parent[prefix]], hit[prefix], after)
        outputs = {"ellipse": ellipse, "residual": residual, "logit": logit}
        return outputs if self.training else outputs | self._extended(batch, lines, state)

    def states(self, lines: TrackLines, hit: Tensor, parent: Tensor, level: Tensor) -> Tensor:
        """The states (prefixes, layers, hidden) after each prefix, computed level by level."""
        place = torch.empty_like(hit)
        done: list[Tensor] = []
        count = 0
        for depth in range(int(level.max()) + 1 if len(level) else 0):
            rows = (level == depth).nonzero().squeeze(1)
            before = torch.cat(done)[place[parent[rows]]] if depth else None
            done.append(self._advance(lines, before, hit[parent[rows]] if depth else None, hit[rows]))
            place[rows] = torch.arange(count, count + len(rows), device=hit.device)
            count += len(rows)
        states = torch.cat(done) if done else lines.place.new_zeros((0, self.layers, self.hidden))
        return states[place]

    def _advance(self, lines: TrackLines, state: Tensor | None, previous: Tensor | None, hit: Tensor) -> Tensor:
        """The states after one more hit."""
        features = lines.line_features(previous, hit) * lines.place.new_tensor(self.shape.scales)
        hidden = None if state is None else state.transpose(0, 1).contiguous()
        _, new = self.gru(features.unsqueeze(0), hidden)
        return torch.as_tensor(new).transpose(0, 1)

    def _steps(
        self, lines: TrackLines, state: Tensor, a: Tensor, b: Tensor, hit: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ellipse, residual of the hit in units of `reach`, and logit of the classifier.

        If a station is bridged, distances and the unit are twice as large.
        """
        ellipse = self.head(state[:, -1])
        ellipse = torch.cat([ellipse[:, :2], nn.functional.softplus(ellipse[:, 2:])], dim=1)
        unit = lines.place.new_tensor(self.shape.reach) * self._crossed(lines, b, hit).unsqueeze(1)
        residual = lines.residual(a, b, hit) / unit
        features = lines.line_features(b, hit) * lines.place.new_tensor(self.shape.scales)
        relative = (residual - ellipse[:, :2]) / ellipse[:, 2:]
        # no gradient from the classifier to the ellipse: there are two losses with two optimisers
        inputs = torch.cat([torch.asinh(residual * 10), torch.asinh(relative * 3), features], dim=1)
        logit = self.ghosts(torch.cat([state[:, -1], inputs], dim=1).detach())
        return ellipse, residual, logit.squeeze(1)

    def _crossed(self, lines: TrackLines, b: Tensor, hit: Tensor) -> Tensor:
        if not self.shape.bridge:
            return torch.ones(len(hit), device=hit.device)
        return (lines.station[hit] - lines.station[b]).clamp(min=1).to(lines.place.dtype)

    def _extended(self, batch: Batch, lines: TrackLines, state: Tensor) -> dict[str, Tensor]:
        """Extend every seed, station by station, by the hits in its ellipse that the classifier accepts."""
        events = batch.ragged("place").events
        board = HitIndex.of(lines, events, self.shape.stations)
        seeds = (batch["level"] == 1).nonzero().squeeze(1)
        hit, parent = batch["prefix"], batch["parent"]
        chains = torch.stack([hit[parent[seeds]], hit[seeds]], dim=1)
        state, score = state[seeds], lines.place.new_zeros(len(seeds))
        candidates: list[CandidateHits] = []
        for _ in range(len(self.shape.stations) - 2):
            row, after, logit = self._grow(lines, board, events, state, chains)
            selected = best_per_group(row, logit, self.shape.branches)
            row, after, logit = row[selected], after[selected], logit[selected]
            selected = best_per_group(events[after], score[row] + logit, self.shape.beam)
            row, after, logit = row[selected], after[selected], logit[selected]
            grown = torch.zeros(len(chains), dtype=torch.bool, device=chains.device)
            grown[row] = True
            candidates.append(_candidates(chains[~grown], score[~grown]))
            state = self._advance(lines, state[row], chains[row, -1], after)
            chains, score = torch.cat([chains[row], after.unsqueeze(1)], dim=1), score[row] + logit
        candidates.append(_candidates(chains, score))
        return self._named(batch, candidates)

    def _grow(
        self, lines: TrackLines, board: HitIndex, events: Tensor, state: Tensor, chains: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All pairs (chain, next hit) inside the ellipse with a score above the threshold, and the excess in logits."""
        rows, hits = [], []
        head = self.head(state[:, -1])
        radius = nn.functional.softplus(head[:, 2:]) * self.shape.widen
        for crossed in (1, 2) if self.shape.bridge else (1,):
            unit = crossed * lines.place.new_tensor(self.shape.reach)
            row, hit = board.hits_near(
                chains[:, -2], chains[:, -1], events, crossed, head[:, 0] * unit[0], radius[:, 0] * unit[0]
            )
            if len(row) > self.shape.max_per_event:
                raise DataError(
                    f"more than {self.shape.max_per_event:,} hits are in the ellipses of one batch; train longer, "
                    "lower tracks.widen, or raise seeds.max_per_event"
                )
            residual = lines.residual(chains[row, -2], chains[row, -1], hit) / unit
            accepted = inside_ellipse(residual, head[row, :2], radius[row])
            rows.append(row[accepted])
            hits.append(hit[accepted])
        row, hit = torch.cat(rows), torch.cat(hits)
        _, _, logit = self._steps(lines, state[row], chains[row, -2], chains[row, -1], hit)
        above = logit - math.log(self.shape.threshold / (1 - self.shape.threshold))
        return row[above > 0], hit[above > 0], above[above > 0]

    def _named(self, batch: Batch, candidates: list[CandidateHits]) -> dict[str, Tensor]:
        long_candidates = [
            candidate
            for candidate in candidates
            if len(candidate.length) and int(candidate.length[0]) >= self.shape.min_hits
        ]
        empty = batch["place"].new_zeros(0)
        members = torch.cat([empty.long(), *(candidate.members for candidate in long_candidates)])
        events, offsets = batch.ragged("place").events, batch.ragged("place").offsets
        return {
            "members": members - offsets[events[members]],
            "member_event": events[members],
            "length": torch.cat([empty.long(), *(candidate.length for candidate in long_candidates)]),
            "score": torch.cat([empty, *(candidate.score for candidate in long_candidates)]),
        }


def _candidates(chains: Tensor, score: Tensor) -> CandidateHits:
    return CandidateHits(chains.reshape(-1), torch.full_like(chains[:, 0], chains.shape[1]), score)


def ellipse_loss(outputs: dict[str, Tensor], batch: Batch, alpha: float) -> Loss:
    """alpha * distance in units of the radii + (1 - alpha) * r1 * r2, over the true next hits."""
    true = batch["step_label"] > 0
    ellipse, residual = outputs["ellipse"][true], outputs["residual"][true]
    squares = (((residual - ellipse[:, :2]) / ellipse[:, 2:]) ** 2).sum(dim=1)
    terms = alpha * torch.sqrt(squares + 1e-6) + (1 - alpha) * ellipse[:, 2] * ellipse[:, 3]
    return Loss((terms * _weights(batch)[true]).sum(), float(true.sum()))


def ghost_loss(outputs: dict[str, Tensor], batch: Batch) -> Loss:
    """Binary cross-entropy over all steps."""
    label = batch["step_label"].to(outputs["logit"].dtype)
    total = nn.functional.binary_cross_entropy_with_logits(outputs["logit"], label, _weights(batch), reduction="sum")
    return Loss(total, float(len(label)))


def _weights(batch: Batch) -> Tensor:
    events = batch.ragged("step_label").events
    return torch.ones(len(events), device=events.device) if batch.weights is None else batch.weights[events]
