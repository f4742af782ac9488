"""The Flower ClientApp: local training, sketches, evaluation."""
