"""Asynchronous training: workers that do not wait for each other, and masters that hold the central weights.

Words used in this package:

worker
    A process that trains on batches. It exchanges updates (gradients, differences or weights) for central weights.
master
    A process that holds the central weights, or a slice of them, and applies updates. With one master it holds all
    weights. With several masters, each holds a slice (a shard). With groups, each group has a master of its own,
    which exchanges with the top master.
coordinator
    The first master (rank 0). It also leases batches to workers, writes the records and checkpoints, organises the
    validation and ends the training.
rule
    What workers send and how masters apply it: downpour, easgd, gem, diloco, backup. One file each in `rules/`.
exchange
    A worker sends an update and receives the central weights.
round
    The updates of several workers, which a master collects and averages before it answers (diloco, backup).
staleness
    How many updates changed the central weights between the weights an update was computed from and its arrival.

Reading order:

1. `rules/`: the rules (start with `rules/__init__.py`).
2. `flat_model.py`: a model as one flat tensor, which is what travels.
3. `master_weights.py`: the central weights and how updates change them.
4. `worker.py`, with `worker_exchange.py`: the loop of a worker.
5. `coordinator.py`, with `update_handler.py`, `batch_leases.py`, `connected_workers.py`, `coordinator_records.py` and
   `validation_queue.py`: the loop of the coordinator.
6. `shard_master.py`, `group_master.py`, `master_links.py`: the other masters, and how the coordinator talks to them.
7. `layout.py` (which rank has which role), `rank_entry.py` (where each process starts), `connection.py` (how processes
   reach each other), `elastic_workers.py` (workers that join and leave), `messaging/` (the transports).
"""
