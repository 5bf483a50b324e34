"""Whether a chat template's source shows that its generation prompt is one fixed text, whatever the messages say."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, TemplateError, nodes

# What a prompt may be made of: texts, and choices by what is given besides the messages.
_FIXED = (
    nodes.Output,
    nodes.TemplateData,
    nodes.Const,
    nodes.Add,
    nodes.Concat,
    nodes.If,
    nodes.Test,
    nodes.Not,
    nodes.And,
    nodes.Or,
)
_GIVEN = {"enable_thinking", "bos_token", "eos_token"}
_PROMPT = "add_generation_prompt"


@lru_cache(maxsize=64)
def has_constant_prompt(template: str) -> bool:
    """True if `add_generation_prompt` is read only by statements outside any loop that write fixed text.

    False where that does not show, such as for a template in a newer dialect.
    """
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError:
        return False
    written = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    reads = sum(name.name == _PROMPT for name in tree.find_all(nodes.Name))
    simple = [
        node
        for node in tree.body
        if isinstance(node, nodes.If)
        and isinstance(node.test, nodes.Name)
        and node.test.name == _PROMPT
        and not node.elif_
        and all(_fixed(child, written) for child in node.body)
    ]
    return _PROMPT not in written and reads == len(simple)


def _fixed(node: nodes.Node, written: set[str]) -> bool:
    if isinstance(node, nodes.Name):
        return node.name in _GIVEN - written
    return isinstance(node, _FIXED) and all(_fixed(child, written) for child in node.iter_child_nodes())
