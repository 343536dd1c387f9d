"""`coterie gpujob`: what can be done with GPU jobs. Each action is a module of its own (`gpujob_run`, `gpujob_ls`, ...)."""

from __future__ import annotations

HELP = """
Run programs that need GPUs and end: as a pod of this cluster (--image), or on a Slurm cluster. Files go there, what the
program prints and the files that it makes come back. Slurm clusters are SlurmCluster objects of the namespace
(`coterie get slurmclusters`). A job is a GpuJob object: `coterie get gpujob`, `coterie delete gpujob NAME`.

Examples:
  coterie gpujob run add --files add.cu --compile add.cu                 # compile with nvcc, run, follow
  coterie gpujob run train --files src --gpus 2 -- python3 train.py
  coterie gpujob run train --image cuda:12 --files src -- python3 train.py   # as a pod
  coterie gpujob ls
  coterie gpujob logs train -f
  coterie gpujob get train --to results                                  # its artifacts
  coterie gpujob cancel train
"""
