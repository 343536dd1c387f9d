"""Virtual addresses of Services: nftables table `ip coterie_services` in the domain's network namespace."""
