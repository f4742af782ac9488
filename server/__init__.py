"""The ServerApp: configuration, strategy construction, evaluation, results."""
