"""GPU jobs: programs that need GPUs and end, as pods of this cluster or as jobs of Slurm clusters."""
