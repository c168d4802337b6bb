"""Implementations of the blocks of the network. All follow the contract of `ops.py`.

Read the files in this order:

    portable.py       torch convolutions and pooling on dense images: slow, and correct on any device
    cpu.py            active cells only, in threads (the loops are in cpu_loops.py, compiled by numba)
    gpu.py            active cells only, on CUDA in bf16
    nvrtc.py          compiles the CUDA C++ of cuda/
    cell_lists.py     Triton kernels: images and lists of active cells
    elu_backward.py   Triton kernels: the gradient of ELU, and sums over cells
    pooling.py        Triton kernels: bias, ELU and pooling around a torch convolution
"""
