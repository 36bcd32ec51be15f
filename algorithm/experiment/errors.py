"""What a user can mend."""


class UserError(Exception):
    """Something the user wrote cannot work; the message says what, where, and what would be right."""
