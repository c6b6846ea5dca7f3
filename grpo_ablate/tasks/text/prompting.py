"""How a question becomes a prompt: chat messages, or one text, with what is said before it."""

from __future__ import annotations

from grpo_ablate.spec.schema import TextSection
from grpo_ablate.tasks.text.places import FORMATS
from grpo_ablate.tasks.text.protocol import Message, Prompt


def chat(settings: TextSection, asked: str | list[Message]) -> Prompt:
    """Return messages that end in the question; those of the user's own keep their system message."""
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    before = said_before(settings)
    if before and messages[0]["role"] != "system":
        return [{"role": "system", "content": before}, *messages]
    return messages


def plain(settings: TextSection, asked: str) -> Prompt:
    """Return one text that ends in the question."""
    before = said_before(settings)
    return f"{before}\n\n{asked}" if before else asked


def said_before(settings: TextSection) -> str:
    """Return what stands before a question: the system text, or else what asks for the format."""
    if settings.system or settings.format == "off":
        return settings.system
    return FORMATS[settings.format].instruction
