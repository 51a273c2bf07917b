"""The list of messages is that of the code, so that whoever changes a message reads it where all others stand.

Other tests of an error check its class and the fact that matters, such as the key or the name, but not its sentence.
"""

from tests.messages import LIST, listed


def test_the_list_has_every_message_as_it_is_written_in_the_code() -> None:
    assert LIST.read_text(encoding="utf-8") == listed(), (
        "run python tests/messages.py, and read what changed in the list"
    )
