"""Upload of a trained run to the Hugging Face Hub."""
