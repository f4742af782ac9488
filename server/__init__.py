"""The Flower ServerApp: configuration, strategy, evaluation, results, checkpoints."""
