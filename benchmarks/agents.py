"""Two graph shapes and the conversations that run through them: a plain `StateGraph`, and `create_agent` with tools."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver

from .workload import CUSTOMER, text

CONVERSATIONS = Path(__file__).parents[2] / "shared" / "data" / "airline_support.jsonl"


class ToolUse(NamedTuple):
    """One call the model makes and what comes back."""

    name: str
    arguments: dict[str, Any]
    answer: str


class Turn(NamedTuple):
    """What the person says, the tools used on the way, and the model's answer."""

    person: str
    tools: tuple[ToolUse, ...]
    answer: str


@cache
def source() -> str:
    """Where the conversations come from."""
    return "airline support, 40 conversations" if CONVERSATIONS.exists() else "generated"


@cache
def _turns() -> tuple[Turn, ...]:
    if not CONVERSATIONS.exists():
        return tuple(_generated(number) for number in range(100))
    with CONVERSATIONS.open(encoding="utf-8") as lines:
        return tuple(itertools.chain.from_iterable(_parsed(json.loads(line)["messages"]) for line in lines))


def turns(count: int) -> list[Turn]:
    """So many turns: the same hundred over and over, so that twice the turns are twice the content."""
    return list(itertools.islice(itertools.cycle(_turns()[:100]), count))


def _parsed(messages: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    person: str | None = None
    uses: list[ToolUse] = []
    for index, one in enumerate(messages):
        if one["role"] == "user":
            person, uses = one["content"], []
        elif one["role"] == "assistant" and one.get("tool_calls"):
            call = one["tool_calls"][0]["function"]
            answer = messages[index + 1]["content"] if index + 1 < len(messages) else ""
            uses.append(ToolUse(call["name"], json.loads(call["arguments"]), answer))
        elif one["role"] == "assistant" and person is not None:
            yield Turn(person, tuple(uses), one["content"] or "")
            person = None


def _generated(number: int) -> Turn:
    """A turn of the real ones' shape: 0.8 tool uses on average, answers of 60 to 3,000 characters."""
    uses = tuple(
        ToolUse(
            "get_details", {"id": text(number, 12)}, json.dumps({"record": text(number + index, 300 + 900 * index)})
        )
        for index in range((0, 1, 0, 2, 1)[number % 5])
    )
    return Turn(text(number, 60 + number % 7 * 40), uses, text(number + 1, 120 + number % 11 * 50))


class ScriptedModel(BaseChatModel):
    """A chat model that says what was written beforehand."""

    script: deque[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_tools: Any, **_options: Any) -> Any:
        """Tools change nothing: the script decides."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],  # noqa: ARG002 - the base class's signature, as all below
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.script.popleft())])


_ANYTHING = {"type": "object", "properties": {}, "additionalProperties": True}


class ScriptedTool(BaseTool):
    """A tool that answers what was written beforehand."""

    script: deque[str]

    def _run(self, **_arguments: Any) -> str:
        return self.script.popleft()


def _said(content: str, calls: Sequence[ToolUse] = ()) -> AIMessage:
    return AIMessage(
        content,
        tool_calls=[
            {"name": one.name, "args": one.arguments, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "tool_call"}
            for one in calls
        ],
        response_metadata={"finish_reason": "tool_calls" if calls else "stop", "model_name": "model-1"},
        usage_metadata={"input_tokens": 1200, "output_tokens": 80, "total_tokens": 1280},
    )


def create_agent_graph(script: Sequence[Turn], saver: BaseCheckpointSaver[Any]) -> Any:
    """`create_agent` with a scripted model and scripted tools."""
    from langchain.agents import create_agent

    said: deque[AIMessage] = deque()
    answers: dict[str, deque[str]] = {}
    for turn in script:
        for use in turn.tools:
            said.append(_said("", [use]))
            answers.setdefault(use.name, deque()).append(use.answer)
        said.append(_said(turn.answer))
    tools: list[BaseTool] = [
        ScriptedTool(name=name, description="Looks something up.", args_schema=_ANYTHING, script=known)
        for name, known in answers.items()
    ]
    return create_agent(ScriptedModel(script=said), tools, checkpointer=saver)


def state_graph(script: Sequence[Turn], saver: BaseCheckpointSaver[Any]) -> Any:
    """A `StateGraph` over messages with one node that answers; tools are left out."""
    from langgraph.graph import START, MessagesState, StateGraph

    model = ScriptedModel(script=deque(_said(turn.answer) for turn in script))

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def aanswer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    graph = StateGraph(MessagesState)
    graph.add_node("model", RunnableLambda(answer, aanswer))
    graph.add_edge(START, "model")
    return graph.compile(checkpointer=saver)


GraphOf = Callable[[Sequence[Turn], BaseCheckpointSaver[Any]], Any]


def config(thread: str) -> RunnableConfig:
    """A run's config."""
    return {"configurable": {"thread_id": thread, "customer_id": CUSTOMER}}


def speak(graph: Any, turn: Turn, thread: str) -> None:
    """One turn of a conversation."""
    graph.invoke({"messages": [HumanMessage(turn.person)]}, config(thread))
