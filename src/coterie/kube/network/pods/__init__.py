"""The kernel side of the pod network: network namespaces, veth devices, routes and nftables rules.

Standard library only and few imports: this runs inside the pod supervisor.
"""
