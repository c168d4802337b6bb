"""TrackNETv2: a recurrent network that says where the next hit of a track is, and a classifier that removes ghosts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clew import Batch, Loss
from clew.errors import DataError
from clew.recipes.tracking.extension import Board, Lines, best, inside


@dataclass(frozen=True)
class Shape:
    """What the network must know of the detector and of how candidates are made."""

    stations: tuple[float, ...]
    """mm, depth of each."""
    period: float
    """Of u; 0 where there is no seam."""
    scales: tuple[float, float, float]
    """Of turn, slope and the place at the beam: what brings them to order 1."""
    reach: tuple[float, float]
    """Unit of length in u and v."""
    bridge: bool
    widen: float
    threshold: float
    branches: int
    beam: int
    most: int
    shortest: int


class Candidates(NamedTuple):
    """What the network found: hits (counted through the batch) in order, candidate by candidate."""

    members: Tensor
    length: Tensor
    score: Tensor


class TrackNet(nn.Module):
    """10,020 parameters for the ellipse (2 layers of 32 GRU cells, and a head), and a small classifier beside them.

    A hit is seen by the line from the hit before (the first by that from the origin): turn, slope, place at the beam.
    The ellipse lies around the straight continuation of the last two hits, in units of `Shape.reach`.
    """

    def __init__(self, shape: Shape, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.shape, self.layers, self.hidden = shape, layers, hidden
        self.gru = nn.GRU(3, hidden, layers)
        self.head = nn.Linear(hidden, 4)
        self.ghosts = nn.Sequential(
            nn.Linear(hidden + 7, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Of every step: `ellipse` (steps, 4) and `off` (steps, 2), the hit's place in it; `logit` that it is the next.

        Not in training also the candidates: `members`, the `member_event` of each, and of each candidate `length` and
        `score`.
        """
        lines = Lines(batch["place"], batch["station"].long(), self.shape.period)
        hit, parent = batch["prefix"], batch["parent"]
        state = self._states(lines, hit, parent, batch["level"])
        prefix, after = batch["step"], batch["step_hit"]
        ellipse, off, logit = self._steps(lines, state[prefix], hit[parent[prefix]], hit[prefix], after)
        outputs = {"ellipse": ellipse, "off": off, "logit": logit}
        return outputs if self.training else outputs | self._extended(batch, lines, state)

    def _states(self, lines: Lines, hit: Tensor, parent: Tensor, level: Tensor) -> Tensor:
        """The state (prefixes, layers, hidden) after each prefix, level by level."""
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

    def _advance(self, lines: Lines, state: Tensor | None, before: Tensor | None, hit: Tensor) -> Tensor:
        """The states after one more hit."""
        seen = lines.seen(before, hit) * lines.place.new_tensor(self.shape.scales)
        hidden = None if state is None else state.transpose(0, 1).contiguous()
        _, new = self.gru(seen.unsqueeze(0), hidden)
        return torch.as_tensor(new).transpose(0, 1)

    def _steps(self, lines: Lines, state: Tensor, a: Tensor, b: Tensor, hit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ellipse, the hit's distance from its centre in units of `reach`, and the logit of the classifier.

        Where a station is bridged everything is twice as far away, and so is the unit.
        """
        ellipse = self.head(state[:, -1])
        ellipse = torch.cat([ellipse[:, :2], nn.functional.softplus(ellipse[:, 2:])], dim=1)
        unit = lines.place.new_tensor(self.shape.reach) * self._crossed(lines, b, hit).unsqueeze(1)
        off = lines.off(a, b, hit) / unit
        own = lines.seen(b, hit) * lines.place.new_tensor(self.shape.scales)
        relative = (off - ellipse[:, :2]) / ellipse[:, 2:]
        # the classifier learns beside the ellipse, not through it: two losses, two optimisers
        close = torch.cat([torch.asinh(off * 10), torch.asinh(relative * 3), own], dim=1)
        logit = self.ghosts(torch.cat([state[:, -1], close], dim=1).detach())
        return ellipse, off, logit.squeeze(1)

    def _crossed(self, lines: Lines, b: Tensor, hit: Tensor) -> Tensor:
        if not self.shape.bridge:
            return torch.ones(len(hit), device=hit.device)
        return (lines.station[hit] - lines.station[b]).clamp(min=1).to(lines.place.dtype)

    def _extended(self, batch: Batch, lines: Lines, state: Tensor) -> dict[str, Tensor]:
        """Grow every seed, station by station, by the hits in its ellipse that the classifier lets pass."""
        events = batch.ragged("place").events
        board = Board.of(lines, events, self.shape.stations)
        seeds = (batch["level"] == 1).nonzero().squeeze(1)
        hit, parent = batch["prefix"], batch["parent"]
        chains = torch.stack([hit[parent[seeds]], hit[seeds]], dim=1)
        state, score = state[seeds], lines.place.new_zeros(len(seeds))
        found: list[Candidates] = []
        for _ in range(len(self.shape.stations) - 2):
            row, after, logit = self._grow(lines, board, events, state, chains)
            kept = best(row, logit, self.shape.branches)
            row, after, logit = row[kept], after[kept], logit[kept]
            kept = best(events[after], score[row] + logit, self.shape.beam)
            row, after, logit = row[kept], after[kept], logit[kept]
            grown = torch.zeros(len(chains), dtype=torch.bool, device=chains.device)
            grown[row] = True
            found.append(_candidates(chains[~grown], score[~grown]))
            state = self._advance(lines, state[row], chains[row, -1], after)
            chains, score = torch.cat([chains[row], after.unsqueeze(1)], dim=1), score[row] + logit
        found.append(_candidates(chains, score))
        return self._named(batch, found)

    def _grow(
        self, lines: Lines, board: Board, events: Tensor, state: Tensor, chains: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every (chain, next hit) inside the ellipse and above the threshold, and by how much (in logits)."""
        rows, hits = [], []
        head = self.head(state[:, -1])
        radius = nn.functional.softplus(head[:, 2:]) * self.shape.widen
        for crossed in (1, 2) if self.shape.bridge else (1,):
            unit = crossed * lines.place.new_tensor(self.shape.reach)
            row, hit = board.near(
                chains[:, -2], chains[:, -1], events, crossed, head[:, 0] * unit[0], radius[:, 0] * unit[0]
            )
            if len(row) > self.shape.most:
                raise DataError(
                    f"more than {self.shape.most:,} hits lie in the ellipses of one batch; train longer, lower "
                    "tracks.widen, or raise seeds.most"
                )
            off = lines.off(chains[row, -2], chains[row, -1], hit) / unit
            near = inside(off, head[row, :2], radius[row])
            rows.append(row[near])
            hits.append(hit[near])
        row, hit = torch.cat(rows), torch.cat(hits)
        _, _, logit = self._steps(lines, state[row], chains[row, -2], chains[row, -1], hit)
        above = logit - math.log(self.shape.threshold / (1 - self.shape.threshold))
        return row[above > 0], hit[above > 0], above[above > 0]

    def _named(self, batch: Batch, found: list[Candidates]) -> dict[str, Tensor]:
        kept = [each for each in found if len(each.length) and int(each.length[0]) >= self.shape.shortest]
        none = batch["place"].new_zeros(0)
        members = torch.cat([none.long(), *(each.members for each in kept)])
        events, offsets = batch.ragged("place").events, batch.ragged("place").offsets
        return {
            "members": members - offsets[events[members]],
            "member_event": events[members],
            "length": torch.cat([none.long(), *(each.length for each in kept)]),
            "score": torch.cat([none, *(each.score for each in kept)]),
        }


def _candidates(chains: Tensor, score: Tensor) -> Candidates:
    return Candidates(chains.reshape(-1), torch.full_like(chains[:, 0], chains.shape[1]), score)


def ellipse_loss(outputs: dict[str, Tensor], batch: Batch, alpha: float) -> Loss:
    """alpha * distance in units of the radii + (1 - alpha) * r1 * r2, over the true next hits."""
    true = batch["step_label"] > 0
    ellipse, off = outputs["ellipse"][true], outputs["off"][true]
    squares = (((off - ellipse[:, :2]) / ellipse[:, 2:]) ** 2).sum(dim=1)
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
