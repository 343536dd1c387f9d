"""Engines that come with Coterie. The programs in here run inside pods, on the standard library alone."""
