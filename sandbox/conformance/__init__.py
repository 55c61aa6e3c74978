"""The checks behind `sandbox.testing`, one file for each part of the law."""
