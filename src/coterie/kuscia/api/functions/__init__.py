"""Serverless functions: kinds and pure rules, for the API server, the functions process, the console and the commands."""
