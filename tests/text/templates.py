"""Chat templates of the supported families, written anew and shorter: the same rendered form, none of the vendors' text.

Jinja2 blocks on lines of their own leave no trace (trim_blocks, lstrip_blocks), so the templates read as they render.
"""

CHATML = """\
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif -%}
"""  # SmolLM2: a system prompt where none is given

QWEN25 = """\
{%- macro system() %}{{ messages[0].content if messages[0].role == 'system' else 'You are Q.' }}{% endmacro -%}
{{- '<|im_start|>system\\n' + system() -}}
{%- if tools -%}
    {{- '\\n\\n# Tools\\n<tools>' -}}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor -%}
    {{- '\\n</tools>\\nAnswer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif -%}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif -%}
    {%- elif not (loop.first and message.role == 'system') -%}
        {{- '<|im_start|>' + message.role -}}
        {%- if message.content %}{{- '\\n' + message.content }}{% endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif -%}
"""  # consecutive tool results share one user turn

QWEN3 = """\
{%- set state = namespace(query=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' %}{% set state.query = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- set thinking, content = '', message.content -%}
        {%- if '</think>' in content -%}
            {%- set thinking = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' -}}
        {%- if loop.index0 > state.query and (loop.last or thinking) -%}
            {{- '<think>\\n' + thinking + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
        {%- else %}{{- content }}{% endif -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}
"""  # thinking before the last question is stripped

LLAMA3 = """\
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' -}}
{%- if messages[0].role == 'system' -%}
    {{- messages[0].content | trim -}}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{{- '<|eot_id|>' -}}
{%- for message in messages -%}
    {%- if message.tool_calls is defined -%}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one tool call at a time') }}{% endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' -}}
        {{- (call.arguments | tojson) + '}<|eot_id|>' -}}
    {%- else -%}
        {%- set role = 'ipython' if message.role == 'tool' else message.role -%}
        {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif -%}
"""

MISTRAL = """\
{%- set last = (messages | selectattr('role', 'equalto', 'user') | list)[-1] -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- if tools and message is sameas last %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif -%}
        {{- '[INST] ' + message.content + '[/INST]' -}}
    {%- elif message.tool_calls is defined -%}
        {{- '[TOOL_CALLS] [' -}}
        {%- for call in message.tool_calls -%}
            {%- if call.id | length != 9 %}{{- raise_exception('ids of tool calls have 9 characters') }}{% endif -%}
            {{- ', ' if not loop.first -}}
            {{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson -}}
        {%- endfor -%}
        {{- ']' + eos_token -}}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token -}}
    {%- elif message.role == 'tool' -%}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' -}}
    {%- else %}{{- raise_exception('only user, assistant and tool') }}{% endif -%}
{%- endfor -%}
"""  # no opening of the model's turn; the tools stand before the last question

GEMMA = """\
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{% endif -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{% endif -%}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) -}}
    {{- '\\n' + message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif -%}
"""

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "<int>"}}}]
