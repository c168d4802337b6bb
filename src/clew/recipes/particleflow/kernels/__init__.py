"""Triton kernels of the packed graph layer, for GPUs in half precision.

Rows here are places in bins: an event's elements begin at a whole bin and its last bin has empty rows, so that sizes
depend on the number of bins alone. `fill` (bins,) says how many rows of each bin are elements, before and after sorting
alike, because empty rows are sorted last. Everything is done for both stacks at once. No kernel adds with atomics: the
same inputs give the same bits.
"""
