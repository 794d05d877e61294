"""Matrix factorization of film likes, on Flower."""
