"""Where stages run: on this machine, on a Ray cluster, or as jobs of SLURM; all of them by the same command line."""
