"""Commands that are neither training nor playing; no tool imports another."""
