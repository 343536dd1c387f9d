"""Makes the in-memory API of tests/client importable here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))
