"""Tracks from links and candidates are those of a sequential greedy choice, or of a search through the graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clew.recipes.tracking import tracks
from clew.recipes.tracking.settings import HitGraphBuildingConfig

Scored = tuple[list[tuple[int, int]], list[float]]


@st.composite
def scored_links(draw: st.DrawFn) -> Scored:
    """Links from lower to higher hits of ten, each pair once, with scores that are often equal."""
    pairs = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1])
    links = draw(st.lists(pairs, unique=True, max_size=25))
    return links, draw(st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=len(links), max_size=len(links)))


def groups(track_numbers: NDArray[np.int64]) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(track_numbers == number).tolist()) for number in track_numbers[track_numbers >= 0]}


def reachable(links: list[tuple[int, int]]) -> set[frozenset[int]]:
    """Connected components by joining sets until none overlap."""
    sets: list[set[int]] = []
    for link in links:
        touching = [each for each in sets if each & set(link)]
        sets = [each for each in sets if each not in touching] + [set(link).union(*touching)]
    return {frozenset(each) for each in sets}


def walked(links: list[tuple[int, int]], scores: list[float], threshold: float) -> set[frozenset[int]]:
    """The best link first, one outwards and one inwards for every hit."""
    accepted_links: list[tuple[int, int]] = []
    for number in sorted(range(len(links)), key=lambda each: (-scores[each], each)):
        a, b = links[number]
        if scores[number] > threshold and all(a != c and b != d for c, d in accepted_links):
            accepted_links.append((a, b))
    return reachable(accepted_links)


def as_array(links: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(links, dtype=np.int64).reshape(-1, 2)


@settings(max_examples=200, deadline=None)
@given(scored_links())
def test_components_are_what_links_reach(sample: Scored) -> None:
    assert groups(tracks.connected_components(as_array(sample[0]), 10)) == reachable(sample[0])


@settings(max_examples=200, deadline=None)
@given(scored_links(), st.integers(1, 4))
def test_a_walk_takes_the_best_links_first(sample: Scored, shortest: int) -> None:
    links, scores = sample
    track_numbers = tracks.from_links(
        as_array(links), np.array(scores), 10, HitGraphBuildingConfig(threshold=0.25, min_hits=shortest)
    )
    assert groups(track_numbers) == {each for each in walked(links, scores, 0.25) if len(each) >= shortest}


@settings(max_examples=100, deadline=None)
@given(scored_links())
def test_components_of_links_above_the_threshold(sample: Scored) -> None:
    links, scores = sample
    track_numbers = tracks.from_links(
        as_array(links), np.array(scores), 10, HitGraphBuildingConfig(threshold=0.25, method="components")
    )
    above = [link for link, score in zip(links, scores, strict=True) if score > 0.25]
    assert groups(track_numbers) == {each for each in reachable(above) if len(each) >= 3}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 5)), max_size=12))
def test_the_best_candidates_take_their_hits_first(candidates: list[tuple[set[int], int]]) -> None:
    taken: set[int] = set()
    expected = set()
    for number in sorted(range(len(candidates)), key=lambda each: (-candidates[each][1], each)):
        if not candidates[number][0] & taken:
            taken |= candidates[number][0]
            expected.add(frozenset(candidates[number][0]))
    members = np.array([hit for hits, _ in candidates for hit in sorted(hits)], dtype=np.int64)
    owner = np.repeat(np.arange(len(candidates)), [len(hits) for hits, _ in candidates])
    scores = np.array([score for _, score in candidates], dtype=float)
    assert groups(tracks.from_candidates(members, owner, scores, 10)) == expected


def test_a_long_path_is_one_track() -> None:
    links = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    for chosen in (HitGraphBuildingConfig(), HitGraphBuildingConfig(method="components")):
        assert tracks.from_links(links, np.ones(999), 1000, chosen).tolist() == [0] * 1000


def test_hits_that_are_one_place_stay_together() -> None:
    """Two hits on the middle station: a walk through one of them takes the other along."""
    links = np.array([[0, 1], [0, 2], [1, 3], [2, 3]])
    apart = tracks.from_links(links, np.array([0.9, 0.8, 0.7, 0.95]), 4, HitGraphBuildingConfig(min_hits=2))
    assert groups(apart) == {frozenset({0, 1}), frozenset({2, 3})}
    same = np.array([0, 7, 7, 3])
    assert groups(tracks.from_links(links, np.ones(4), 4, HitGraphBuildingConfig(), same)) == {frozenset(range(4))}
