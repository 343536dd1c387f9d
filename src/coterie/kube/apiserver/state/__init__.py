"""The current state of all objects, kept in memory and fed by the store's durable log."""
