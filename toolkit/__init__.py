"""Fine-tuning on Hugging Face Accelerate: a recipe says what to learn, a layout says how to run it."""

import logging
import os

__version__ = "0.1.0"

# CPU threads that wait for each other spin for some microseconds and then sleep. Without a limit they spin for
# milliseconds, which makes a step many times slower as soon as anything else runs on the machine; without any spinning it
# is slower on an idle one. Read by the OpenMP runtime when torch loads it, so it is set before.
os.environ.setdefault("GOMP_SPINCOUNT", "100000")

# peft imports bitsandbytes wherever it is installed, which then warns of optional kernels that it does not find, also in
# runs without a quantized weight.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
