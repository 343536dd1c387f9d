"""Admission webhooks and conversion webhooks.

registry.py      which webhooks a request concerns; loaded always, and does nothing while there is no configuration
matching.py      rules and selectors of webhooks. Pure
review.py        AdmissionReviews, and what an answer may say. Pure
dispatcher.py    calls the webhooks of one request: mutating ones in series, validating ones at once
conditions.py    match conditions in CEL
conversion.py    ConversionReviews, and what an answer may say
"""
