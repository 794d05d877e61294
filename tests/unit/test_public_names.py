"""The public surface. A change here is a change for users: say so in the changelog."""

import importlib

import pytest

PUBLIC = {
    "sfsl": {
        "Aggregate", "Attempt", "Callback", "Catalogue", "Event", "Fleet", "Model", "RoundRecord", "Samples",
        "SecureMean", "Serving", "SfslError", "StopTraining", "Table", "Task", "Terms", "TrainedRun",
        "UnionResult", "__version__", "aggregate", "join", "join_async", "load", "private_set_union",
        "secure_mean", "serve", "serve_async", "train",
    },
    "sfsl.client": {
        "Attempt", "Backoff", "ClientModel", "DurableMemory", "Event", "Lesson", "Link", "LinkLimits",
        "Memory", "Participant", "PersonalRows", "Settings", "Trainer", "trusted",
    },
    "sfsl.data": {
        "NO_ROW", "Catalogue", "Inspection", "Interactions", "LoadReport", "NextWords", "Role", "Samples",
        "Speech", "Statistics", "SyntheticSettings", "SyntheticTaobao", "Windows", "assemble", "bayes_auc",
        "describe", "hold_out_last", "inspect_table", "load_amazon", "load_csv", "load_parquet",
        "load_shakespeare", "load_table", "load_taobao", "read_catalogue", "speech_of", "with_negatives",
        "write_catalogue",
    },
    "sfsl.flower": {
        "Member", "Node", "Terms", "client_app", "device_member", "model_of", "server_app",
    },
    "sfsl.models": {
        "BST", "DIEN", "DIN", "KINDS", "LogisticRegression", "NextWordLSTM", "bst", "build_task", "dien",
        "din", "logistic_regression", "next_word_lstm",
    },
    "sfsl.secagg": {
        "Aggregate", "AggregateRows", "Client", "Cost", "GraphPlan", "Layout", "Opened", "Policy",
        "Server", "SessionParams", "Start", "SumParams", "TableShape", "aggregate", "aggregate_rows",
        "default_graph", "default_min_contributors", "default_threshold", "plan_graph",
    },
    "sfsl.privacy": {
        "PAPER_OWNERS", "PRESETS", "Budget", "Calendar", "ClientState",
        "ClosedPeriod", "Decoys", "DiscreteGaussian", "Events", "IndexPrivacy",
        "Ledger", "NoisePlan", "PeriodSelection", "Perturber", "Tables", "Tuned", "Workload",
        "choose_uniformly", "cohort_events", "deviation_for", "epsilon_of", "frontier", "honest_survivors",
        "owner_distribution", "plan_noise", "rho_for", "rho_of", "tune",
    },
    "sfsl.rounds": {
        "Download", "IndexSpace", "RoundClient", "RoundOutcome", "RoundParams", "RoundPolicy",
        "RoundServer", "RoundSums", "ScoreBins", "Trained", "as_downloaded", "conclude",
        "histogram_words", "read_sums", "require_rows",
    },
    "sfsl.submodel": {
        "ADDITION", "PAPER", "Applied", "Averaging", "Commit", "DenseBlock", "LmdbStore", "MemoryStore",
        "ModelSpec", "ModelSums", "Quantization", "RowBlock", "RowMaps", "RowSet", "RowStore",
        "ServerStep", "StoreSpec", "Table", "TrainedRows", "UpdateParams", "UpdateWords", "WeightedSums",
        "apply_sums", "decode_sums", "encode_update",
    },
    "sfsl.training": {
        "ClientData", "ClientWork", "LocalSettings", "LocalUpdate", "Task", "auc", "auc_error_bound",
        "auc_from_histograms", "click_loss", "rebuild_client", "rebuild_cohort", "reference_score",
        "relative_scores", "score_histograms", "score_parts", "score_samples", "train_client", "train_cohort",
    },
    "sfsl.union": {
        "Encoding", "UnionClient", "UnionParams", "UnionResult", "UnionServer", "choose", "hash_strings",
        "planned_capacity", "private_set_union",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) == PUBLIC[name]
    assert all(hasattr(module, public) for public in module.__all__)
