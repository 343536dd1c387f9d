"""What a gateway measures: Envoy's statistics, sockets to partners, routes, certificates. See README.md."""
