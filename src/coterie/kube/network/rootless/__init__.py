"""The way of an ordinary user's domain out of its namespaces: entering them, the relay, and what the machine allows."""
