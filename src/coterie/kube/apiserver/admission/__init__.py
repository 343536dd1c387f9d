"""What may enter: checks that need more than the object itself (its namespace, quotas, other objects)."""
