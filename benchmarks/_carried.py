"""Collisions of Pythia in one small file, for a machine that has no Pythia: pile-up and detector are computed there.

    python benchmarks/_carried.py --events 1200 --seed 1 collisions.npz.xz

Floats are rounded to 12 significant bits (0.01%), far below what the detector resolves.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table, concat
from clew.recipes.particleflow import generator, pileup
from clew.recipes.particleflow.generator import EVENTS_PER_FILE, ParticleFlowGeneratorConfig
from clew.recipes.particleflow.targets import VisibleParticles

BITS = 12


def pack(path: Path, count: int, seed: int) -> None:
    """Write `events` top pairs and the pool of minimum-bias collisions."""
    config = ParticleFlowGeneratorConfig()
    firsts = range(0, count, EVENTS_PER_FILE)
    parts = [
        generator._hard_collisions(min(EVENTS_PER_FILE, count - f), seed, f // EVENTS_PER_FILE, config) for f in firsts
    ]
    hard, soft = concat(parts), pileup.load_pool(config.pool, config.energy)
    arrays: dict[str, Any] = {
        "gen_met": hard.fixed("gen_met"),
        "hard": hard.ragged("pt").lengths,
        "soft": np.diff(soft.offsets),
    }
    for name, particles in (("hard", pileup.particles_from_table(hard)), ("soft", soft.particles)):
        arrays |= {f"{name}_{key}": _halves(values) for key, values in particles._asdict().items()}
    held = io.BytesIO()
    np.savez(held, **arrays)
    path.write_bytes(lzma.compress(held.getvalue(), preset=6))


def unpack(path: Path) -> tuple[Table, pileup.PileupPool]:
    """The hard collisions, and the pool."""
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as arrays:
        hard, soft = (_particles(arrays, name) for name in ("hard", "soft"))
        like = Ragged.from_lengths(hard.pt, arrays["hard"])
        columns = {name: like.share(values) for name, values in hard._asdict().items()}
        offsets = np.concatenate([[0], np.cumsum(arrays["soft"])])
        return Table({"gen_met": arrays["gen_met"], **columns}), pileup.PileupPool(soft, offsets)


def overlaid(path: Path, count: int, seed: int, folder: Path) -> list[str]:
    """Write files of events made from them, with one process per core."""
    folder.mkdir(parents=True, exist_ok=True)
    files = range(-(-count // EVENTS_PER_FILE))
    jobs = [(path, min(EVENTS_PER_FILE, count - f * EVENTS_PER_FILE), seed, f, folder) for f in files]
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), get_context("spawn")) as workers:
        return list(workers.map(_file, jobs))


def _file(job: tuple[Path, int, int, int, Path]) -> str:
    path, count, seed, file, folder = job
    hard, soft = unpack(path)
    setattr(generator, "load_pool", lambda settings, energy: soft)  # noqa: B010
    file_events, config = (
        hard.slice(file * EVENTS_PER_FILE, file * EVENTS_PER_FILE + count),
        ParticleFlowGeneratorConfig(),
    )
    met, detected = zip(
        *(generator._make_event(file_events, seed, file, place, config) for place in range(count)), strict=True
    )
    target = folder / f"carried-{file:05d}.h5"
    generator.events_table(detected, met, file * EVENTS_PER_FILE, config.process_name).save(target)
    return str(target)


def _halves(values: NDArray[Any]) -> NDArray[Any]:
    """Rounded floats as separate upper and middle bytes, which compress better."""
    if values.dtype != np.float32:
        return values
    drop = 24 - BITS
    raw = (values.view(np.uint32).astype(np.uint64) + (1 << (drop - 1))) >> drop
    rounded = raw.astype(np.uint32)
    return np.stack([(rounded >> 8 * place & 255).astype(np.uint8) for place in range(3)])


def _particles(arrays: Mapping[str, NDArray[Any]], name: str) -> VisibleParticles:
    columns = {key: arrays[f"{name}_{key}"] for key in VisibleParticles._fields}
    return VisibleParticles(**{key: _joined(values) if values.ndim == 2 else values for key, values in columns.items()})


def _joined(bytes_: NDArray[np.uint8]) -> NDArray[np.float32]:
    raw = sum(part.astype(np.uint32) << 8 * place for place, part in enumerate(bytes_))
    return (np.asarray(raw, dtype=np.uint32) << (24 - BITS)).view(np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pack(arguments.path, arguments.events, arguments.seed)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 2**20:.1f} MiB")
