"""Where groups of runs execute: in this process, on its cores, on Dask, Ray or SLURM."""
