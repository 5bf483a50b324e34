"""Fine-tuning on Hugging Face Accelerate: a recipe says what to learn, a layout says how to run it."""

import os

__version__ = "0.1.0"

# CPU threads that wait for each other sleep instead of spinning. Spinning gains little on an idle machine and makes a
# step many times slower when anything else runs on it. Read when torch loads its thread pool, so it is set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
