"""Documents that describe every resource and its fields, for `kubectl explain`, client-side checks and generators.

definitions.py  built-in schemas (from a package)  ┐
custom.py       schemas of custom resources        ├─▶ v3.py ─▶ JSON for each group-version   ┐
operations.py   what can be done with a resource   ┘   v2.py ─▶ JSON, or gnostic.py: protobuf ├─▶ service.py
"""

from coterie.kube.apiserver.openapi.service import OpenApi

__all__ = ["OpenApi"]
