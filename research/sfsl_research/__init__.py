"""What measures sfsl and reproduces the paper: benchmarks, experiments, load tests."""
