"""Calls between domains: outboxes to partners, an inbox for theirs, ActionGrants."""
