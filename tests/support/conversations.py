"""Customer-support conversations with tool calls, and a graph that plays them turn by turn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "airline_support.jsonl"


def generated(count: int) -> list[list[dict[str, Any]]]:
    """Conversations of the recorded ones' shape, for where the recordings are not at hand."""
    conversations = []
    for number in range(count):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "# Policy\n" + "Be helpful. " * 200}]
        for turn in range(4 + number % 3):
            call = f"call_{number}_{turn}"
            arguments = json.dumps({"user_id": f"ada_lovelace_{number}", "turn": turn})
            function = {"name": "get_user_details", "arguments": arguments}
            messages += [
                {"role": "user", "content": f"Hello, I am Ada, born 1815-12-{turn + 1:02}. Turn {turn}?"},
                {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": call, "name": "get_user_details", "content": arguments * 20},
                {"role": "assistant", "content": f"Your booking {turn} is confirmed. " * 3},
            ]
        conversations.append(messages)
    return conversations


def conversations(count: int) -> list[list[dict[str, Any]]]:
    """Up to ``count`` conversations in the chat-completions form: the recorded ones where they are at hand."""
    if not RECORDED.is_file():
        return generated(count)
    with RECORDED.open(encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines][:count]


def message(raw: dict[str, Any], key: str) -> AnyMessage:
    """A recorded message as LangChain has it, with an id of its own."""
    content = raw.get("content") or ""
    match raw["role"]:
        case "system":
            return SystemMessage(content, id=key)
        case "user":
            return HumanMessage(content, id=key)
        case "tool":
            return ToolMessage(content, tool_call_id=raw["tool_call_id"], name=raw.get("name"), id=key)
    calls = [
        {"id": c["id"], "name": c["function"]["name"], "args": json.loads(c["function"]["arguments"])}
        for c in raw.get("tool_calls") or ()
    ]
    return AIMessage(content, tool_calls=calls, id=key)  # type: ignore[arg-type]


def player(raw: list[dict[str, Any]], saver: Any) -> tuple[Any, list[AnyMessage]]:
    """A compiled graph that answers as recorded, and what the user says, turn by turn."""
    script = [message(one, f"m{number}") for number, one in enumerate(raw)]
    answers: dict[str, AnyMessage] = {}
    for before, after in itertools.pairwise(script):
        if not isinstance(after, HumanMessage):
            answers[str(before.id)] = after

    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [answers[str(state["messages"][-1].id)]]}

    def then(state: MessagesState) -> str:
        following = answers.get(str(state["messages"][-1].id))
        if following is None:
            return END
        return "tools" if isinstance(following, ToolMessage) else "assistant"

    builder = StateGraph(MessagesState)
    for node in ("assistant", "tools"):
        builder.add_node(node, reply)
        builder.add_conditional_edges(node, then, ["assistant", "tools", END])
    builder.add_conditional_edges(START, then, ["assistant", "tools", END])
    return builder.compile(checkpointer=saver), [m for m in script if isinstance(m, HumanMessage | SystemMessage)]


def play(call: Any, raw: list[dict[str, Any]], saver: Any, config: dict[str, Any]) -> Any:
    """Plays a conversation to its end, a turn at a time, and returns the graph."""
    graph, said = player(raw, saver)
    for one in said:
        call(graph, "invoke", {"messages": [one]}, config)
    return graph
