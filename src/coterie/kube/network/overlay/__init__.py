"""The network between the nodes of a domain: a VXLAN, and a way from the machine to pods. Root only."""
