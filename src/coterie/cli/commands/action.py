"""`coterie action`: what can be done with serverless functions. Each action is a module of its own (`action_create`, ...)."""

from __future__ import annotations

HELP = """
Serverless functions. An Action is a function in Python (or any language, as a container image). Its actors are
started when calls come and removed when none come. It answers, or passes the call on to one of the actions in --next.

Examples:
  coterie action create hello --script hello.py --http /hello      # create or update; running calls are not interrupted
  coterie action invoke hello --param name=Ann
  coterie action create calc --script calc.py --next add,mul       # create what is called before what calls it
  coterie action create -f functions.yaml                          # several, in the right order
  coterie action graph                                             # which calls which, calls a minute, errors, actors
  coterie action logs hello -f
  coterie action trigger add hello --schedule "*/5 * * * *"
  coterie action publish orders --body @order.json                 # to a topic that Triggers read
  coterie action dlq ls                                            # calls that were given up
  coterie action rollback hello
  coterie action grant score --to bob --per-minute 60              # bob: next: [alice/score]
"""
