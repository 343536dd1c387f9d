"""From an installed Coterie to the result of a job of two parties. Before: `coterie up`."""

import coterie.sdk

alice = coterie.sdk.connect("alice")
job = alice.jobs.run("sample", ["alice", "bob"]).check()
for task in job.status.tasks:
    print(task.alias, task.state, *(f"{party.domain_id}: {party.state}" for party in task.parties))
