"""Logistic regression by FedAvg."""
