"""Makes the gateways of tests/gateway importable here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
