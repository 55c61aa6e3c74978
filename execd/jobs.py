"""Jobs: commands that run in the background, each in a shell of its own, under an id that lives as long as the sandbox.

A job starts with the directory and the exported variables that its session had after its last command. Its output is
kept as an exec's is (head and tail); the oldest ended jobs lose theirs when all jobs together keep too much. A job's
shell ends with it; what the job itself left in the background lives on.
"""

from . import procs
from .protocol import FRAME_OUTPUT, FRAME_RESULT, Refusal, encode, frame, frame_head
from .sessions import Session

MAX_JOBS = 4096
MAX_RUNNING = 256
KEPT_OUTPUT = 64 << 20
READ_LIMIT = 4 << 20
WAIT_LIMIT_S = 60.0


class Job:
    """One job. It is the host of its own session."""

    def __init__(self, daemon, record, like):
        self.loop, self.env, self.workdir, self.user = daemon.loop, daemon.env, daemon.workdir, daemon.user
        self._daemon = daemon
        self.record = record
        self.session = Session("job " + record.id, self)
        if like is not None:
            self.session.start_like(like)

    @property
    def ending(self):
        """Whether the daemon takes its children along just now."""
        return self._daemon.ending

    def exec_ended(self, _record):
        """The job is over; so is its shell, unless a time-out kept it."""
        self.session.end_shell()

    def state(self):
        """What is known of it, as a JSON value."""
        record = self.record
        state = {"id": record.id, "running": not record.ended, "output_bytes": record.output.total}
        if record.result is not None:
            state.update(record.result)
        elif record.failure is not None:
            state.update(error=record.failure.code, message=record.failure.message)
        return state


class Jobs:
    """Every job by its id."""

    def __init__(self, daemon):
        self._daemon = daemon
        self._jobs = {}

    def sessions(self):
        """The sessions of all jobs."""
        return [job.session for job in self._jobs.values()]

    def start(self, record, like):
        """Start a job; a second start under the same id finds the first. Raises Refusal."""
        job = self._jobs.get(record.id)
        if job is not None:
            if job.record.digest != record.digest:
                raise Refusal("id_reused")
            return job
        running = sum(not job.record.ended for job in self._jobs.values())
        if running >= MAX_RUNNING or len(self._jobs) >= MAX_JOBS:
            raise Refusal("too_many", "%d jobs run, %d were started" % (running, len(self._jobs)))
        self._trim(record)
        job = Job(self._daemon, record, like)
        job.session.submit(record)
        if record.failure is not None:
            raise record.failure
        self._jobs[record.id] = job
        return job

    def find(self, request):
        """The job that a request names. Raises Refusal."""
        job = self._jobs.get(request.text("id"))
        if job is None:
            raise Refusal("unknown_exec", "no such job")
        return job

    def states(self):
        """What is known of all of them, in the order of their starts."""
        return [job.state() for job in self._jobs.values()]

    def _trim(self, coming):
        kept = sum(len(job.record.output) for job in self._jobs.values())
        for job in self._jobs.values():
            if kept + coming.output.limit <= KEPT_OUTPUT:
                return
            if job.record.ended:
                kept -= len(job.record.output)
                job.record.output.forget()


def signal(job, number):
    """Signal the job's processes, or its shell where it runs a builtin. How many were signalled."""
    found = job.session.processes()
    procs.signal_all(found, number)
    return len(found)


class Poll:
    """Answers one question about a job: at once, or when there is output behind `offset` or, asked so, its end."""

    def __init__(self, daemon, request, connection, job):
        self._connection = connection
        self._job = job
        self._offset = request.number("offset", 0, 0, 1 << 62)
        self._limit = request.number("limit", READ_LIMIT, 0, READ_LIMIT)
        self._until_end = request.number("until_end", 0, 0, 1) == 1
        self._overdue = None
        wait_s = request.number("wait_s", 0.0, 0.0, WAIT_LIMIT_S, float)
        record = job.record
        if record.ended or not wait_s or (record.output.total > self._offset and not self._until_end):
            self._answer()
            return
        connection.on_gone = self._leave
        record.followers.append(self)
        self._overdue = daemon.loop.after(wait_s, self._answer)

    def more(self):
        """There is more output."""
        if not self._until_end:
            self._answer()

    def ended(self):
        """The job is over."""
        self._answer()

    def _leave(self):
        if self._overdue is not None:
            self._overdue.cancel()
        if self in self._job.record.followers:
            self._job.record.followers.remove(self)

    def _answer(self):
        self._leave()
        parts = []
        if self._limit:
            offset, data = self._job.record.output.piece(self._offset, self._limit)
            parts += [frame_head(FRAME_OUTPUT, 8 + len(data)) + offset.to_bytes(8, "big"), data]
        parts.append(frame(FRAME_RESULT, encode(self._job.state())))
        self._connection.answer(200, *parts, kind="application/octet-stream")
