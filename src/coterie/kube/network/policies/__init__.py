"""NetworkPolicies: a plan of nftables rules (pure) and its enforcement in the domain's network namespace."""
