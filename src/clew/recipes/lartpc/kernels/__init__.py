"""How a block is computed: `portable` by torch alone, `processor` on CPUs, `device` on CUDA. All keep one contract."""
