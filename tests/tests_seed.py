"""The seed of the fuzz tests: another one each day. pytest prints it; REGARD_TEST_SEED repeats a failure."""

import datetime
import os

VARIABLE = "REGARD_TEST_SEED"

# Stored in the environment, so that all workers use the same seed, also after midnight.
os.environ.setdefault(VARIABLE, f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")

DAILY_SEED = int(os.environ[VARIABLE])
