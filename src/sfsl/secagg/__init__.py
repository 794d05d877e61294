"""Secure aggregation with double masking that survives dropouts."""

from sfsl.secagg.client import Client, Start
from sfsl.secagg.facade import Aggregate, AggregateRows, Cost, aggregate, aggregate_rows
from sfsl.secagg.graph import GraphPlan, default_graph, default_min_contributors, plan_graph
from sfsl.secagg.masking import Opened
from sfsl.secagg.messages import Layout, Policy, SessionParams, SumParams, TableShape, default_threshold
from sfsl.secagg.server import Server

__all__ = [
    "Aggregate", "AggregateRows", "Client", "Cost", "GraphPlan", "Layout", "Opened", "Policy", "Server",
    "SessionParams", "Start", "SumParams", "TableShape", "aggregate", "aggregate_rows",
    "default_graph", "default_min_contributors", "default_threshold", "plan_graph",
]  # fmt: skip
