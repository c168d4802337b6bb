"""Triton kernels of the graph network on packed events, for GPUs in half precision.

Rows are slots of bins. The elements of an event start at a new bin, and its last bin may have empty rows, so sizes
depend only on the number of bins. `fill` (bins,) is the number of elements in each bin. It is the same before and after
sorting, because empty rows are sorted last. All kernels process both stacks at once. No kernel uses atomic additions:
the same inputs give the same bits.

Read the files in this order:

    graph_forward.py   the forward pass of the whole network
    layer.py           one graph layer as one torch operation, with its gradient
    sorting.py         hash codes and the sort into bins
    affinity.py        the affinity matrix of every bin, and its gradient
    messages.py        inner features, messages and gate, and their gradients
    dense.py           dense layers with ELU
    products.py        matrix products with many rows
"""
