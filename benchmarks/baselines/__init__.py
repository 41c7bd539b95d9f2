"""What the benchmarks compare with. Nothing here imports tocsin."""
