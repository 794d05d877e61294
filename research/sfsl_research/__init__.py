"""What measures sfsl, reproduces the paper and simulates at scale."""
