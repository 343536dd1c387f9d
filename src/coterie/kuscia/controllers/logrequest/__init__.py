"""LogRequests: log lines for partners, with consent."""
