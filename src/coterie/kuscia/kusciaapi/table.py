"""All operations of KusciaAPI. A module of services appends its own here."""

from __future__ import annotations

from coterie.kuscia.kusciaapi import (
    appimages,
    bandwidth,
    certificates,
    configs,
    datasources,
    domaindata,
    domains,
    evidence,
    grants,
    health,
    job_plans,
    jobs,
    log_search,
    logs,
    partner_logs,
    routes,
    servings,
)
from coterie.kuscia.kusciaapi.operations import ApiOperation

OPERATIONS: tuple[ApiOperation, ...] = (
    *health.OPERATIONS,
    *domains.OPERATIONS,
    *routes.OPERATIONS,
    *configs.OPERATIONS,
    *certificates.OPERATIONS,
    *jobs.OPERATIONS,
    *job_plans.OPERATIONS,
    *logs.OPERATIONS,
    *log_search.OPERATIONS,
    *partner_logs.OPERATIONS,
    *domaindata.OPERATIONS,
    *datasources.OPERATIONS,
    *grants.OPERATIONS,
    *appimages.OPERATIONS,
    *servings.OPERATIONS,
    *bandwidth.OPERATIONS,
    *evidence.OPERATIONS,
)

CONF_MANAGER: tuple[ApiOperation, ...] = certificates.CONFMANAGER_OPERATIONS
"""What ConfManager has on its own ports."""
