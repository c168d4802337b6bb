"""Layers and the optimiser of many small models on a device, by Triton: few kernels instead of many.

At 256 models of 10,000 weights a step is bound by the number of kernels and by products that are too small for a
library: a program here does a layer of one model, or all its layers. Products are done as three in TF32, which is as
exact as one in single precision. Import from here only where there is Triton.
"""
