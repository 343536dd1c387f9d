"""The node agent: makes the pods bound to its node real, and tells the API how they are."""
