"""Chat templates give the reference's text, and hostile ones are stopped."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest
from tests.text.folders import END, OLD, byte_level, write

from trifold.errors import CheckpointError, DataError
from trifold.text import read_tokenizer
from trifold.text.chat import render

pytestmark = pytest.mark.slow

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """{%- set ns = namespace(index=0) %}{{ bos_token }}{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and tools is not none %}
            {{- "[AVAILABLE_TOOLS] [" }}{%- for tool in tools %}{{- tool.function | tojson }}{{- ", " if not loop.last else "" }}{%- endfor %}{{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "system" %}
        {{- message["content"] }}
    {%- endif %}{%- set ns.index = ns.index + 1 %}
{%- endfor %}{{ ns.index }}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
TEMPLATES = {
    "chatml": CHATML,
    "llama 2": LLAMA_2,
    "llama 3": LLAMA_3,
    "mistral": MISTRAL,
    "zephyr": ZEPHYR,
    "gemma": "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + (m['role'] if m['role'] != 'assistant' else 'model') "
    "+ '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}|"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "macro": "{% macro line(m, n=2) %}{{ m.role|upper }}{{ '-' * n }}{{ m.content|replace('o', '0') }}\n{% endmacro %}"
    "{% for m in messages %}{{ line(m, n=loop.index) }}{% endfor %}{{ pad_token is defined }}",
    "today": "{{ strftime_now('%Y') }} {{ messages | tojson }} {{ messages[0].content | length + 3 }} {{ messages|map(attribute='role')|join(',') }}",
    "escapes": "{% for m in messages %}{{ m | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}<&'\">{% endfor %}",
    "undefined": "{{ bos_token }}{{ nothing }}{{ cls_token }}{% if documents %}{% for d in documents %}{{ d.title }}{% endfor %}{% endif %}"
    "{{ messages[-1].get('content', '')[::-1] }} {{ dict(a=1).items()|list }} {{ 7 // 2 }} {{ 2 ** 5 }}",
    "thinking": "{% for m in messages %}{% set c = m.content.split('</think>')[-1].lstrip('\\n') %}{{ '<｜' ~ m.role ~ '｜>' ~ c }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>' }}{% endif %}",
}  # fmt: skip
TALKS = [
    [{"role": "user", "content": "Hello!  "}],
    [
        {"role": "system", "content": " Be kind, é日😀 <b>&'\" "},
        {"role": "user", "content": "Who are\nyou?"},
        {"role": "assistant", "content": "<think>hm</think>\nA fox.", "tool_calls": None},
        {"role": "user", "content": "Oh…"},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(
        tmp_path_factory.mktemp("chat"),
        "gpt2",
        END,
        pad_token="<|pad|>",
        tokenizer_class="GPT2Tokenizer",
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_equals_the_reference(name: str, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    template = TEMPLATES[name]
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    ours, theirs = read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for talk in TALKS:
        for more in (
            {},
            {"add_generation_prompt": True},
            {"tools": TOOLS, "enable_thinking": False},
        ):
            expected = theirs.apply_chat_template(talk, tokenize=False, **more)
            assert ours.chat(talk, **more) == expected
            ids = theirs.apply_chat_template(talk, tokenize=True, return_dict=False, **more)
            assert ours.encode([expected], special_in_text=True) == [ids]


@pytest.mark.parametrize("name", ["chatml", "llama 2", "zephyr", "today"])
@pytest.mark.parametrize("layout", ["gpt2", "llama"])
def test_special_tokens_of_a_user_stay_text(name: str, layout: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|im_start|>"}
    if layout == "gpt2":
        byte_level(tmp_path, "gpt2", ("<|endoftext|>",), tokenizer_class="GPT2Tokenizer", **special)
    else:
        OLD["llama"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name], encoding="utf-8", newline="\n")
    ours, theirs = read_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    talk = [
        {"role": "system", "content": f"Say {ours.names['eos_token']} at the end."},
        {"role": "user", "content": "Hello  there."},
        {"role": "assistant", "content": f"<think>{ours.names['bos_token']}"},
        {"role": "user", "content": "Oh…"},
    ]
    ids = theirs.apply_chat_template(talk, tokenize=True, return_dict=False)
    assert ours.encode_chat(talk) == ids  # nothing to hide
    names = [*ours.names.values()]
    for written in (*names, f"a {names[0]}{names[1]} b", f"{names[0]}<{names[1]}|im_end|>"):
        talk[1]["content"] = f"x {written} y"
        found = ours.encode_chat(talk)
        whole = theirs.apply_chat_template(talk, tokenize=False)
        # The same text, and no special token more than without the user's.
        counts = [[one for one in row if one in ours._forbidden_ids] for row in (found, ids)]
        assert counts[0] == counts[1]
        if layout == "gpt2":
            assert ours.decode([found], keep_special=True) == [whole]
            body = ours.encode([f" {written} y"])[0]
            assert any(found[at : at + len(body)] == body for at in range(len(found)))


def test_special_tokens_in_the_parts_of_a_message_and_of_tools_stay_text(folder: Path) -> None:
    template = (
        "{% for m in messages %}{{ bos_token }}{{ m.role }} {% if m.content is string %}{{ m.content }}"
        "{% else %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    ours = read_tokenizer(folder)
    end = ours.names["bos_token"]
    user = {"role": "user", "content": [{"type": "text", "text": f"a {end}"}, {"text": end}]}
    tool = {"role": "tool", "content": f"{end} 7"}
    found = ours.encode_chat([user, tool])
    assert found.count(ours.bos_id) == 2
    assert ours.decode([found], keep_special=True) == [f"{end}user a {end}{end}{end}tool {end} 7"]
    trusted = ours.encode_chat([user | {"role": "assistant"}, tool | {"role": "system"}])
    assert trusted.count(ours.bos_id) == 5
    assert user["content"][1]["text"] == end  # the messages are not changed


def test_templates_in_settings_in_files_and_by_name(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "d"},
        {"name": "tool_use", "template": "{{ tools|length }}"},
    ]
    byte_level(tmp_path, "gpt2", END, chat_template=named)
    ours = read_tokenizer(tmp_path)
    assert ours.chat(TALKS[0]) == "d" and ours.chat(TALKS[0], tools=TOOLS) == "1"
    assert ours.chat(TALKS[0], template="tool_use", tools=[]) == "0"
    saved = tmp_path / "saved"
    saved.mkdir()
    ours.save(saved)
    assert read_tokenizer(saved).templates == ours.templates
    write(tmp_path, tokenizer_config__json={"chat_template": "old"})
    assert read_tokenizer(tmp_path).chat(TALKS[0]) == "old"
    write(tmp_path, chat_template__jinja="new")
    assert read_tokenizer(tmp_path).chat(TALKS[0]) == "new"
    with pytest.raises(DataError, match=r"no chat template 'rag' \(known: default\)"):
        read_tokenizer(tmp_path).chat(TALKS[0], template="rag")
    with pytest.raises(DataError, match="at least one message"):
        read_tokenizer(tmp_path).chat([])


def test_a_message_of_half_a_character_is_an_error(tmp_path: Path) -> None:
    byte_level(tmp_path, "gpt2", END, chat_template=CHATML)
    tokenizer = read_tokenizer(tmp_path)
    for use in (tokenizer.chat, tokenizer.encode_chat):
        with pytest.raises(DataError, match="unpaired surrogate"):
            use([{"role": "user", "content": "fox\ud800"}])


def test_templates_that_refuse_or_are_invalid() -> None:
    with pytest.raises(DataError, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(CheckpointError, match="line 2: TemplateSyntaxError"):
        render("a\n{% if %}", {})
    with pytest.raises(CheckpointError, match="UndefinedError"):
        render("{{ a.b.c }}", {})
    with pytest.raises(DataError, match="must be text, lists and objects"):
        render("", {"messages": [object()]})
    assert render("{{ strftime_now('%Y') }}", {}) in {
        str(datetime.now().year),
        str(datetime.now().year - 1),
    }


FOR_EVER = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{% for a in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    "numbers": "{% set n = namespace(x=10**15) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
}
TOO_MUCH = {
    "product": "{{ 'a' * 10**10 }}",
    "list": "{{ [0] * 10**10 }}",
    "power": "{{ 10 ** 10 ** 8 }}",
    "doubling": "{% set n = namespace(x='a' * 999) %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "adding": "{% set n = namespace(x='a' * 999) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "format": "{{ '%10000000000d' % 1 }}",
    "width": "{{ 'a'.ljust(10**10) }}",
    "centre": "{{ 'a'|center(10**10) }}",
    "range": "{{ range(10**9)|list }}",
    "output": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "words": "{{ lipsum(n=10**6) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "system prompt": "{{ 'You are helpful. ' * 5000 }}{{ messages[0].content }}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ + 'a' }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "format": "{{ '{0.__class__}'.format(1) }}{{ ('%s' % cycler.__init__) }}",
    "attr": "{{ messages|attr('__class__') + 'a' }}",
    "self": "{{ self.__init__.__globals__.__builtins__ }}",
    "namespace": "{% set n = namespace(__class__=1) %}{{ n }}",
    "change": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("name", FOR_EVER)
def test_an_endless_template_is_stopped(name: str) -> None:
    before = time.monotonic()
    with pytest.raises(
        CheckpointError,
        match=r"it ran for more than 0\.3 s|used up the memory|MemoryError|ValueError",
    ):
        render(FOR_EVER[name], {}, timeout=0.3)
    assert (
        time.monotonic() - before < 120
    )  # a busy machine may take its time to start the next process
    assert render("{{ 1 + 1 }}", {}, timeout=60) == "2"


@pytest.mark.parametrize("name", [*TOO_MUCH, *ESCAPES])
def test_a_template_that_exceeds_limits_or_escapes_is_rejected(name: str) -> None:
    with pytest.raises(CheckpointError, match="chat template"):
        render((TOO_MUCH | ESCAPES)[name], {"messages": [{"role": "user"}]})


def test_a_template_may_repeat_long_messages() -> None:
    messages = [{"role": "user", "content": "a long text " * 20_000}]
    template = "{{ 'Be brief. ' * 100 }}{{ messages[0].content }}{{ messages[0].content }}"
    assert len(render(template, {"messages": messages})) == 1_000 + 2 * 240_000


def test_a_template_that_is_too_long_or_not_utf8(tmp_path: Path) -> None:
    byte_level(tmp_path, "gpt2", END)
    (tmp_path / "chat_template.jinja").write_bytes(b"a" * (2 << 20))
    with pytest.raises(CheckpointError, match="too large"):
        read_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        read_tokenizer(tmp_path)
