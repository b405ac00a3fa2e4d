"""A model folder says by its template how the model writes."""

from nemo_gym.parsers.detect import reasoning_format, tool_call_format
from nemo_gym.rendering.template import ChatTemplate

QWEN = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- (c.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def test_formats_are_those_that_the_template_writes():
    assert tool_call_format(ChatTemplate(QWEN, {}).render) == "hermes"
    assert reasoning_format(ChatTemplate(QWEN, {}).render) == "qwen3"


def test_a_template_that_writes_none_has_none():
    assert tool_call_format(ChatTemplate(PLAIN, {}).render) is None
    assert reasoning_format(ChatTemplate(PLAIN, {}).render) is None
    assert tool_call_format(ChatTemplate("{{ raise_exception('no') }}", {}).render) is None
