"""Run an azure-ai-ml pipeline here, on a cluster or on Azure ML, each step an MLflow run.

Stands beside the ladder: imports its lower steps only. `azure` is the only module that imports
azure-ai-ml, `executors` the only one that imports Parsl; both when they are used.
"""
