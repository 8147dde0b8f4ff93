"""Nothing goes out from the tests: Flower and Ray report on their users unless told not to."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
