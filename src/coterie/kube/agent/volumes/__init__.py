"""Volumes: the files that pods see, made from API objects, directories and the pod itself."""
