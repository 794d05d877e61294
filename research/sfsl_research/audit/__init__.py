"""Attacks on our own output: is epsilon kept, and what do unions and sums give away beside it?"""
