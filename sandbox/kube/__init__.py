"""The Kubernetes provider: sandboxes as plain pods that are paced, spread, guarded and owned to their end.

The decisions are pure: `manifest` (what a pod is), `snapshot` (what the server says of it), `endings` (why it ended),
`ownership` (who must delete it). Around them are thin shells: `api`, `watch`, `lease`, `janitor`, `guard`, `provider`.
"""
