"""`coterie node`: machines that join a control plane and leave it. Each action is a module of its own."""

from __future__ import annotations

HELP = """
Add machines to a control plane, or to the domain of a lite, and take them away. Run `add` on the machine of the control
plane or of the lite, `join`, `leave` and `reset` on the new machine, and `drain` and `delete` wherever there is a
kubeconfig, or at the lite. `add` writes a join file; copy it to the new machine and run `join` there. Nothing else has
to be installed or configured.

Examples:
  coterie node add node-2 --address 10.0.0.2            # control plane: writes node-2.join
  coterie node join node-2.join                         # machine 10.0.0.2: starts the node in the background
  coterie node add node-2 --address 10.0.0.2 -o - | ssh 10.0.0.2 coterie node join -
  coterie node describe node-2                          # its runtimes, what they cost, which walls are missing
  coterie node drain node-2 --ignore-daemonsets         # move its pods to other nodes
  coterie node delete node-2                            # it will not come back
  coterie node leave                                    # machine 10.0.0.2: drain, stop, delete the Node
  coterie node reset                                    # machine 10.0.0.2: remove everything
"""
