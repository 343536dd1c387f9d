"""`python -m coterie.engines.xgboost.server WORKERS PORT`: XGBoost's own server. It never ends by itself."""

from __future__ import annotations

import sys

import xgboost.federated

if __name__ == "__main__":
    xgboost.federated.run_federated_server(n_workers=int(sys.argv[1]), port=int(sys.argv[2]), timeout=180)
