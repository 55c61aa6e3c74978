"""Task sets: SWE-bench-style rows of every schema, typed into one frozen `Task`."""

from tasksets.errors import TaskSetError
from tasksets.task import Task, TestPlan
from tasksets.taskset import TaskSet, open_taskset

__all__ = ["Task", "TaskSet", "TaskSetError", "TestPlan", "open_taskset"]
