"""The model card of a trained model: Markdown for a model hub, and one HTML file."""
