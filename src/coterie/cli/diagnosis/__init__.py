"""`coterie diagnose`: links between parties, access logs of gateways, a bundle for support."""
