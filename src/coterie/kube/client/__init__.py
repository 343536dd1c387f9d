"""The client of the API: the same calls in-process, over HTTPS to our server, or to a real kube-apiserver."""
