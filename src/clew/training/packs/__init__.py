"""Packs: many small models of the same shape, trained at once in one process.

A small model does not use a whole core or GPU. A pack stacks the weights of many models along a first axis, so that one
forward pass, one backward pass and one optimiser step serve all of them, and each batch is loaded once. Every model (a
member of the pack) is still a run of its own, with its own records, checkpoints and end, and computes the same numbers
as in a training of its own. Studies train their trials in packs, and `train.replicas` trains an ensemble in packs.

The packed loop shares the recipe, the loader, the schedule, the records and the checkpoint format with
`clew.training.loop`. It cannot share the step itself: there, one model has one optimiser; here, all members have one.

Reading order:

1. `member.py`: one member of a pack. `pack.py`: trains a list of members, in packs where possible.
2. `grouping.py`: which members can share a pack.
3. `stacked_weights.py`: the weights of all members as one table. `stacked_layers.py`: layers that work on it.
   `dropout.py`: dropout with a rate and a seed per member. `optimizer.py`: one optimiser with settings per member.
4. `forward.py`, `engine.py`: one forward pass, one step of all members.
5. `loop.py`, with `samples.py`, `validation.py` and `member_state.py`: the training from the first to the last record.
6. `step_tables.py`, `graph_replay.py`: steps that are recorded once as a CUDA graph and replayed. `kernels/`: Triton
   kernels for stacked layers and Adam.
7. `replicas.py`: ensembles.
"""
