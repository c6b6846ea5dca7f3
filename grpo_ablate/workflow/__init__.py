"""What the Snakemake rules need at parse time: cells, digests, devices, guards."""
