"""XGBoost's federated training, unmodified, between organisations: its server at one, a worker at each that has rows."""
