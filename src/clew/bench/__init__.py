"""Benchmarks: how training scales, how fast a node is, and which strategy reaches a target first.

Reading order:

1. `scaling`: one training per number of workers, and a forecast for more workers (`clew bench scale`).
2. `workload`: a fixed training on one node in the format of HEPscore (`clew bench particleflow`, `node`, `score`).
3. `strategies`: time to a target quality per strategy and bandwidth, on virtual hosts (`clew bench strategies`).

Each of them has a `results` module (what was measured, as a `clew.bench.results.BenchResult`) and a `page` module (the
HTML page, from the parts in `clew.bench.pages`). `compare` compares two results of one kind; `measured_jobs` starts and
watches the trainings.
"""
