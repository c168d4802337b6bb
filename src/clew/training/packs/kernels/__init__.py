"""Triton kernels for the layers and the optimiser of a pack on a GPU: few kernels instead of many.

With 256 models of 10,000 weights each, the time of a step is limited by the number of kernels, and by matrix products
that are too small for a library. Here one Triton program computes one layer, or all layers, of one model. Products are
computed as three products in TF32, which is as exact as one in single precision.

Import these modules only if Triton is installed.
"""
