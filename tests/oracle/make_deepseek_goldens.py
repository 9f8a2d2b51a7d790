"""Goldens of the renderer that chat_template_type "deepseek_v32" names: the text
that mlx-lm's own renderer gives.

    python tests/oracle/make_deepseek_goldens.py tests/data/jinja/deepseek_v32.json
"""

import copy
import importlib.metadata
import json
import pathlib
import sys

from compare_templates import CONVERSATIONS, TOOLS
from mlx_lm.chat_templates.deepseek_v32 import apply_chat_template

SCHEMA = {"type": "object", "properties": {"é": {"type": "number"}}}
MORE = {
    "format": [{"role": "system", "content": "S", "response_format": SCHEMA}, {"role": "user", "content": "u"}],
    "own_tools": [{"role": "system", "content": "S", "tools": TOOLS}, {"role": "user", "content": "u"}],
    "developer": [{"role": "developer", "content": "d", "response_format": SCHEMA}],
    "no_answer_yet": [{"role": "assistant", "content": "x", "reasoning_content": "r"}],
}
# What the original loses or crashes on by mistake: checked by hand instead.
SKIP = ("images", "parts", "result_parts", "result_object")


def arguments_as_text(messages):
    """The original reads them from JSON text alone."""
    messages = copy.deepcopy(messages)
    for m in messages:
        for call in m.get("tool_calls") or []:
            function = call.get("function")
            if function and isinstance(function["arguments"], dict):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return messages


def loses_tools(messages, tools):
    return tools is not None and not any(m["role"] in ("system", "developer") for m in messages)


def main(path):
    rows = []
    for name, messages in {**CONVERSATIONS, **MORE}.items():
        if name in SKIP:
            continue
        messages = arguments_as_text(messages)
        for tools in (None, TOOLS):
            if loses_tools(messages, tools):
                continue
            for kwargs in ({}, {"enable_thinking": False}, {"thinking_mode": "chat"}, {"enable_thinking": True}):
                for mode in ("generate", "stop", "continue"):
                    request = {
                        "messages": messages,
                        "chat_template_kwargs": kwargs,
                        "add_generation_prompt": mode == "generate",
                        "continue_final_message": mode == "continue",
                    }
                    if mode == "continue" and messages[-1]["role"] != "assistant":
                        continue
                    try:
                        text = apply_chat_template(
                            copy.deepcopy(messages),
                            mode == "continue",
                            mode == "generate",
                            **kwargs,
                            **({"tools": tools} if tools else {}),
                        )
                    except Exception:  # noqa: BLE001
                        text = None
                    rows.append([name, tools is not None, request, text])
    # A row for each text, and each way to fail, is enough.
    seen, kept = set(), []
    for name, tools, request, text in rows:
        key = (name, tools, text)
        if key not in seen:
            seen.add(key)
            kept.append({"name": name, "tools": tools, "request": request, "text": text})
    made_by = f"tests/oracle/make_deepseek_goldens.py with mlx-lm {importlib.metadata.version('mlx-lm')}"
    pathlib.Path(path).write_text(
        json.dumps({"made_by": made_by, "tools": TOOLS, "rows": kept}, ensure_ascii=False, separators=(",", ":"))
        + "\n",
        encoding="utf-8",
    )
    print(len(kept), "rows,", sum(r["text"] is None for r in kept), "of them errors")


if __name__ == "__main__":
    main(sys.argv[1])
