"""The caller of a request: the user that a token belongs to, and what this user may see.

What belongs to a user may also belong to one group. Members of the group see and change it as the owner does.
Administrators see everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.server.database.tables import groups, jobs
from clew.server.problems import RequestError, forbidden


@dataclass(frozen=True)
class Caller:
    """The user, token and rights behind a request."""

    user: int
    name: str
    admin: bool
    """Whether the user is an administrator and the token has the scope `admin`."""
    scopes: frozenset[str]
    """The token's scopes, with the implied ones."""
    groups: frozenset[int]
    token: int
    expires: float | None = None
    job: int | None = None
    """The job that the token was made for. Such a token gives access to the run of this job only."""
    session: bool = False
    """Whether the token is that of a browser session."""
    address: str = ""

    def can_see(self, row: Any) -> bool:
        """Return whether the caller may see a row that has the columns `owner` and `group`."""
        if self.job is not None:
            return bool(getattr(row, "job", None) == self.job)
        return self.admin or row.owner == self.user or (row.group is not None and row.group in self.groups)

    def visible(self, table: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return the same rule as a condition on the rows of a table."""
        if self.job is not None:
            return table.c.job == self.job if "job" in table.c else sa.false()
        if self.admin:
            return sa.true()
        owned = table.c.owner == self.user
        return owned | table.c.group.in_(sorted(self.groups)) if self.groups else owned

    def check_job_kind(self, kind: str, connection: sa.Connection) -> None:
        """Check that the token of a job is that of a job of this kind. Tokens of users pass.

        Args:
            kind: The kind of job, such as `prepare`.
            connection: An open connection.

        Raises:
            RequestError: it is the token of another kind of job (403).
        """
        if self.job is not None and connection.scalar(sa.select(jobs.c.kind).where(jobs.c.id == self.job)) != kind:
            raise forbidden("the token of a job gives access to its own run only", hint="use a token of your own")

    def group_id(self, name: str | None, connection: sa.Connection) -> int | None:
        """Return the id of a group that the caller is a member of.

        Args:
            name: The group. None: the group of the caller's job, or no group.
            connection: An open connection.

        Raises:
            RequestError: the group does not exist, or the caller is not a member of it.
        """
        of_job = connection.scalar(sa.select(jobs.c.group).where(jobs.c.id == self.job)) if self.job else None
        if name is None:
            return of_job
        number = connection.execute(sa.select(groups.c.id).where(groups.c.name == name)).scalar()
        allowed = number == of_job if self.job is not None else self.admin or number in self.groups
        if number is None or not allowed:
            raise RequestError(404, f"no such group: {name}", where="group", hint="name one that you are a member of")
        return int(number)
