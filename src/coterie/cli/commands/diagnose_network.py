"""`coterie diagnose network`: every link between some domains, measured in both directions."""

from __future__ import annotations

import argparse
import asyncio

from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.diagnosis.gather import local_gateways
from coterie.cli.diagnosis.links_command import aim, diagnose_links, link_options
from coterie.cli.diagnosis.model import every_pair
from coterie.cli.session import CliSession

HELP = """
Measure every link between the named domains, in both directions, on the way that engines' calls take: authentication,
HTTP/2, gRPC, mTLS, size of bodies, buffering, idle time-out, bandwidth, round trip, clock. Links whose source is elsewhere
are measured by that side, if its gateway answers diagnosis; what cannot be known is shown as unknown and is no failure.

Exit status: 0 nothing is broken, 1 a link is broken.

Examples:
  coterie diagnose network alice bob
  coterie diagnose network alice bob carol -o json
  coterie diagnose network alice bob --idle 5m          # does a call without traffic live that long?
  coterie diagnose network alice bob --quick            # reach, protocols, round trip and clock only
"""


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    link_options(parser)
    parser.complete(words="domains")


def run(args: argparse.Namespace, app: App) -> int:
    needs = every_pair(args.words)
    if len(needs.parties) < 2:
        raise UsageError("name two domains or more: coterie diagnose network alice bob")
    aim(args, app, needs.parties)

    async def act(session: CliSession) -> int:
        return await diagnose_links(app, args, session.client, needs)

    try:
        sessions.choose(args, app)
    except CliError:
        # The machine of a lite has a gateway and no control plane.
        if not local_gateways(sessions.root_of(args, app), needs.parties):
            raise
        return asyncio.run(diagnose_links(app, args, None, needs))
    return sessions.run(args, app, act)
