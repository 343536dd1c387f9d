"""Dashboards for Grafana, alert rules and a scrape configuration for Prometheus, built by code."""
