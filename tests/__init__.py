"""All tests. They run beside each other, so a process has one thread, unless a test wants more.

Threads of OpenMP that wait for each other keep their cores busy: with two threads per process on two cores, the tests
of packs took 52 instead of 15 CPU seconds. The variable is set before a test or a plugin imports torch.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
