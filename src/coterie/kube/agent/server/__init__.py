"""The agent's own HTTPS endpoint, on a kubelet's paths: logs, exec, attach, port-forward, usage."""
