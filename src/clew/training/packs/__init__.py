"""Many small models trained at once: stacked weights, one forward, one backward, one optimiser, one pass over the data.

`group` says which trainings go together, `stack` holds their weights, `lift` has layers that work on all of them,
`dropout` and `optimize` do with a number a model what torch does with one for all, `step` is one step, `course` many
that ask nobody, `replay` records those where the device can (`kernels` are for devices too), `loop` is a training from
the first to the last record of every run. `pack` is what other processes call, `replicas` trains an ensemble.
"""
