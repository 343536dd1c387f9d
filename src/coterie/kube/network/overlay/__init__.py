"""The network between the nodes of a domain: a VXLAN, plain routes on shared links, and a way from the machine to pods. Root only."""
